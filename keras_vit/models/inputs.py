"""Images as users pass them: their preparation, their shape, and a warning about images that were not prepared."""

import warnings
from typing import Any

import keras
import numpy as np

from keras_vit import _checks
from keras_vit.models.normalization import SYMMETRIC, black_and_white, of_images

_FAR_OUTSIDE = 4.0  # images that are normalized by ImageNet's mean and deviation reach 2.7
_LOOKED_AT = 32  # images of a batch whose values are compared

# Kinds of values, as a warning names them.
PIXELS, FRACTIONS, SCALED = "pixels in [0, 255]", "values in [0, 1]", "values around 0"


def preprocess_input(images: Any, model: keras.Model | None = None, data_format: str | None = None) -> Any:
    """Normalize pixel values in [0, 255] for a model: to [-1, 1], or as the weights of `model` were trained.

    Floats without a value above 1 cause a warning: they were scaled before.

    Args:
        images: Array, tensor or PIL image, of integers or floats in [0, 255], whose last axis is the channels; of any
            shape if all channels are normalized alike.
        model: Model of this package. Its `input_normalization` is applied, and [-1, 1], with a warning, where the model
            does not know its own. The pixels of a model with an `input_range` are mapped to that. None for [-1, 1].
        data_format: `"channels_last"` or None, which are the same: no model of this package takes channels first.

    Returns:
        Float32, NumPy if `images` is not a tensor.

    Raises:
        ValueError: If an argument is something else, such as a path or `"channels_first"`.

    Example:
    >>> preprocess_input(np.array([0, 255], np.uint8)).tolist()
    [-1.0, 1.0]
    >>> model.input_normalization = (0.0, 1.0)
    >>> preprocess_input(np.array([0, 255], np.uint8), model).tolist()
    [0.0, 1.0]
    """
    if not hasattr(images, "dtype"):
        images = _checks.numbers_of("images", images, "an array or tensor of pixels in [0, 255]")
    _checks.choice("data_format", data_format, (None, "channels_last"))
    if model is not None:
        _checks.instance("model", model, keras.Model, "the model that takes the images, or None")
    found = kind_of_values(images)
    if found in (FRACTIONS, SCALED):
        warnings.warn(
            f"preprocess_input takes pixels in [0, 255]. Received: {found}. Pass the pixels as they are in the file.",
            stacklevel=2,
        )
    scale, offset = _scale_and_offset(model)
    if isinstance(images, np.ndarray):
        return images.astype(np.float32) / scale - offset
    if "float32" not in str(images.dtype):
        images = keras.ops.cast(images, "float32")
    return images / scale - offset  # also of a tensor of tf.data under another backend


def _scale_and_offset(model: keras.Model | None) -> tuple[Any, Any]:
    """Return the numbers, one for all channels or one for each, that make `pixels / scale - offset` the input."""
    known = of_images(model)
    if model is not None and known is None:
        warnings.warn(
            f"The model {model.name!r} does not know the normalization that its weights were trained with: [-1, 1] is "
            "assumed. Set model.input_normalization = (mean, deviation), of pixels in [0, 1].",
            stacklevel=3,
        )
    mean, deviation = np.asarray(known or SYMMETRIC)
    scale, offset = (255.0 * deviation).astype(np.float32), (mean / deviation).astype(np.float32)
    is_one = all(len(set(side)) == 1 for side in (mean, deviation))
    return (scale[0], offset[0]) if is_one else (scale, offset)


def checked_images(model: keras.Model, images: Any) -> Any:
    """Return the images that a model was called with; a dict or list of one tensor is that tensor.

    Images of another shape raise a ValueError. Values that were not prepared cause a warning, once, if they are known.
    """
    values = list(images.values()) if isinstance(images, dict) else images
    if isinstance(values, (list, tuple)) and len(values) == 1 and hasattr(values[0], "shape"):
        images = values[0]
    check_shape(model, images)
    if not model._has_seen_images:
        model._has_seen_images = warn_about_values(model, images)
    is_tensor = keras.backend.backend() == "tensorflow" and keras.ops.is_tensor(images)
    if is_tensor and not images.shape[1:].is_fully_defined():
        import tensorflow as tf

        return tf.ensure_shape(images, model.inputs[0].shape)  # their size is known at run time only
    return images


def check_shape(model: keras.Model, images: Any) -> None:
    """Raise a ValueError if images do not have the shape that a model takes."""
    shape = getattr(images, "shape", ())
    if getattr(shape, "rank", 0) is None:  # of a data set that does not know it
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
            f"[batch, height, width, channels]. Received: {shape or _checks.described(images)}.{hint} Resize them, or "
            "build the model with `image_size` (None for any size) and `channels` as your images have them."
        )


def kind_of_values(images: Any) -> str | None:
    """Return the kind of the values in a batch, or None if that cannot be seen.

    It cannot be seen where values are traced, nor in images of one color, which may be black.
    """
    try:
        if "int" in keras.backend.standardize_dtype(images.dtype):
            return PIXELS
        if not len(images.shape) or isinstance(images, keras.KerasTensor):
            return None
        first = images[:_LOOKED_AT]
        values = keras.ops.convert_to_numpy(first) if keras.ops.is_tensor(first) else np.asarray(first)
        low, high = float(np.min(values)), float(np.max(values))
    except Exception:  # noqa: BLE001  a tracer of any backend, or a type without numbers
        return None
    if max(high, -low) > _FAR_OUTSIDE:
        return PIXELS
    if low < 0:
        return SCALED
    return FRACTIONS if low < high <= 1 else None


def warn_about_values(model: keras.Model, images: Any) -> bool:
    """Warn about images whose values a model does not take, and return whether the values could be seen."""
    found, expected = kind_of_values(images), black_and_white(of_images(model) or SYMMETRIC)
    if found not in (None, kind_of_values(np.asarray(expected))):
        arguments = "images" if expected == (-1, 1) else "images, model"
        warnings.warn(
            f"The model {model.name!r} takes float images in [{expected[0]:.3g}, {expected[1]:.3g}]. "
            f"Received: {found}. Prepare pixels in [0, 255] with keras_vit.preprocess_input({arguments}).",
            stacklevel=2,
        )
    return found is not None
