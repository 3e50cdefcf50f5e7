"""Values of images: their preparation, and a warning about images that were not prepared."""

import warnings
from typing import Any

import keras
import numpy as np

_FAR_OUTSIDE = 4.0  # images that are normalized by ImageNet's mean and deviation reach 2.7


def preprocess_input(images: Any) -> Any:
    """Scale pixel values from [0, 255] to [-1, 1], which the models take.

    Args:
        images: Array or tensor of any shape, of integers or floats in [0, 255].

    Returns:
        Float32, NumPy if `images` is.

    Example:
    >>> preprocess_input(np.array([0, 255], np.uint8)).tolist()
    [-1.0, 1.0]
    """
    if isinstance(images, (np.ndarray, list, tuple)):
        return np.asarray(images, np.float32) / 127.5 - 1.0
    if "float32" not in str(images.dtype):
        images = keras.ops.cast(images, "float32")
    return images / 127.5 - 1.0  # also of a tensor of tf.data under another backend


def warn_about_values(name: str, images: Any) -> bool:
    """Warn about images that a model was not made for: integers, and values far outside of [-1, 1].

    Args:
        name: Name of the model.
        images: Its input. Values are looked at in the first image, and not where they are traced.

    Returns:
        Whether there was something to look at.
    """
    dtype = keras.backend.standardize_dtype(getattr(images, "dtype", "float32"))
    advice = "Prepare pixels in [0, 255] with keras_vit.preprocess_input(images)."
    if "int" in dtype:
        warnings.warn(f"The model {name!r} takes float images in [-1, 1]. Received: {dtype}. {advice}", stacklevel=4)
        return True
    first = _values_of_first(images)
    if first is None:
        return False
    if first.size and np.abs(first).max() > _FAR_OUTSIDE:
        found = f"values from {first.min():.3g} to {first.max():.3g}"
        warnings.warn(f"The model {name!r} takes images in [-1, 1]. Received: {found}. {advice}", stacklevel=4)
    return True


def _values_of_first(images: Any) -> np.ndarray | None:
    """Return the first image of a batch; None if its values are not known."""
    if isinstance(images, keras.KerasTensor) or len(getattr(images, "shape", ())) != 4 or not images.shape[0]:
        return None
    try:
        return np.asarray(keras.ops.convert_to_numpy(images[0]), np.float32)
    except Exception:  # noqa: BLE001  a tracer of any backend
        return None
