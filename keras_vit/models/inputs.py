"""Input images: normalization, a check of their shape, and a warning about images that are not normalized."""

import warnings
from typing import Any

import keras
import numpy as np

from keras_vit.models.normalization import SYMMETRIC, black_and_white, of_images
from keras_vit.util import checks

_FAR_OUTSIDE = 4.0  # images normalized with ImageNet's mean and standard deviation reach 2.7
_LOOKED_AT = 32  # number of images of a batch whose values are checked

# Exif orientation -> method of `PIL.Image.Image.transpose` that turns the image upright.
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}

# Kinds of values, as named in the warnings.
PIXELS, FRACTIONS, SCALED = "pixels in [0, 255]", "values in [0, 1]", "values around 0"


def preprocess_input(images: Any, model: keras.Model | None = None, data_format: str | None = None) -> Any:
    """Normalize pixels in [0, 255] to [-1, 1], or with the normalization of `model`.

    Warns if the images look normalized already, such as floats in [0, 1].

    Args:
        images: Array, tensor or PIL image with integers or floats in [0, 255]. The last axis contains the channels. If
            all channels have the same normalization, any shape is allowed. A PIL image is rotated upright and becomes
            gray or RGB.
        model: Model of this package whose `input_normalization` is applied. If the normalization is unknown, the pixels
            are mapped to [-1, 1] with a warning. If the model has an `input_range`, the pixels are mapped to this
            range. None for [-1, 1].
        data_format: `"channels_last"` or None, which are equivalent.

    Returns:
        Float32 array or tensor: a NumPy array unless `images` is a tensor.

    Raises:
        ValueError: If an argument is invalid, such as a path or `"channels_first"`.

    Example:
    >>> preprocess_input(np.array([0, 255], np.uint8)).tolist()
    [-1.0, 1.0]
    >>> model.input_normalization = (0.0, 1.0)
    >>> preprocess_input(np.array([0, 255], np.uint8), model).tolist()
    [0.0, 1.0]
    """
    if hasattr(images, "getexif"):
        images = _upright(images)
    elif not hasattr(images, "dtype"):
        images = checks.numbers_of("images", images, "an array or tensor of pixels in [0, 255]")
    checks.choice("data_format", data_format, (None, "channels_last"))
    if model is not None:
        checks.instance("model", model, keras.Model, "the model that takes the images, or None")
    found = kind_of_values(images)
    if found in (FRACTIONS, SCALED):
        warnings.warn(
            f"preprocess_input takes pixels in [0, 255]. Received: {found}. Pass the file's pixels unchanged.",
            stacklevel=2,
        )
    scale, offset = _scale_and_offset(model)
    if isinstance(images, np.ndarray):
        return images.astype(np.float32) / scale - offset
    if "float32" not in str(images.dtype):
        images = keras.ops.cast(images, "float32")
    return images / scale - offset  # operators also work for tensors of tf.data under another backend


def _upright(image: Any) -> np.ndarray:
    """Return the pixels of a PIL image, `[H, W]` or `[H, W, 3]`, upright according to its Exif orientation."""
    orientation = image.getexif().get(0x0112)
    image = image.transpose(_TURNS[orientation]) if orientation in _TURNS else image
    if image.mode.startswith("I;16"):
        return np.asarray(image) >> 8
    gray = {"1": "L", "LA": "L", "L": "L", "I": "I", "F": "F"}
    return np.asarray(image.convert(gray.get(image.mode, "RGB")))


def _scale_and_offset(model: keras.Model | None) -> tuple[Any, Any]:
    """Return the `scale` and `offset` of `pixels / scale - offset`, each a single number or one number per channel."""
    known = of_images(model)
    if model is not None and known is None:
        warnings.warn(
            f"The normalization with which the weights of model {model.name!r} were trained is unknown: [-1, 1] is "
            "assumed. Set model.input_normalization = (mean, standard deviation), for pixels in [0, 1].",
            stacklevel=3,
        )
    mean, deviation = np.asarray(known or SYMMETRIC)
    scale, offset = (255.0 * deviation).astype(np.float32), (mean / deviation).astype(np.float32)
    is_one = all(len(set(side)) == 1 for side in (mean, deviation))
    return (scale[0], offset[0]) if is_one else (scale, offset)


def checked_images(model: keras.Model, images: Any) -> Any:
    """Check the shape and, once, the values of the images passed to a model. Unpack a container of a single tensor."""
    values = list(images.values()) if isinstance(images, dict) else images
    if isinstance(values, (list, tuple)) and len(values) == 1 and hasattr(values[0], "shape"):
        images = values[0]
    check_shape(model, images)
    if not model._has_seen_images:
        model._has_seen_images = warn_about_values(model, images)
    is_tensor = keras.backend.backend() == "tensorflow" and keras.ops.is_tensor(images)
    if is_tensor and not images.shape[1:].is_fully_defined():
        import tensorflow as tf

        return tf.ensure_shape(images, model.inputs[0].shape)  # check the size at run time
    return images


def check_shape(model: keras.Model, images: Any) -> None:
    """Raise a ValueError if the shape of images does not match a model's input."""
    shape = getattr(images, "shape", ())
    if getattr(shape, "rank", 0) is None:  # a data set with tensors of unknown rank
        return
    shape, expected = tuple(shape), tuple(model.inputs[0].shape)
    agrees = len(shape) == len(expected) and all(
        got is None or want is None or got == want for got, want in zip(shape, expected, strict=True)
    )
    if not agrees:
        own = isinstance(images, dict) and {"image", "label"} <= images.keys()
        hint = " Pass as_tuples=True to keras_vit.data.train_batches." if own else ""
        raise ValueError(
            f"{type(model).__name__} {model.name!r} takes images of shape {expected} "
            f"[batch, height, width, channels]. Received: {shape or checks.described(images)}.{hint} Resize them, or "
            "build the model with the `image_size` (None for any size) and `channels` of your images."
        )


def kind_of_values(images: Any) -> str | None:
    """Return the kind of the values in a batch, or None for symbolic tensors and images of a single color."""
    try:
        if "int" in keras.backend.standardize_dtype(images.dtype):
            return PIXELS
        if not len(images.shape) or isinstance(images, keras.KerasTensor):
            return None
        first = images[:_LOOKED_AT]
        values = keras.ops.convert_to_numpy(first) if keras.ops.is_tensor(first) else np.asarray(first)
        low, high = float(np.min(values)), float(np.max(values))
    except Exception:  # noqa: BLE001  tracers of any backend, or types that are not numeric
        return None
    if max(high, -low) > _FAR_OUTSIDE:
        return PIXELS
    if low < 0:
        return SCALED
    return FRACTIONS if low < high <= 1 else None


def warn_about_values(model: keras.Model, images: Any) -> bool:
    """Warn if the values of images do not match a model's normalization. Return True if the values were checked."""
    found, expected = kind_of_values(images), black_and_white(of_images(model) or SYMMETRIC)
    if found not in (None, kind_of_values(np.asarray(expected))):
        arguments = "images" if expected == (-1, 1) else "images, model"
        warnings.warn(
            f"The model {model.name!r} takes float images in [{expected[0]:.3g}, {expected[1]:.3g}]. "
            f"Received: {found}. Prepare pixels in [0, 255] with keras_vit.preprocess_input({arguments}).",
            stacklevel=2,
        )
    return found is not None
