"""Preprocessing of encoded images for a predictor, with TensorFlow only if needed."""

import functools
import sys
from collections.abc import Callable

import numpy as np

from keras_vit.inference import light_preprocess


@functools.lru_cache(maxsize=16)
def image_function(pp: str) -> Callable[[bytes], np.ndarray]:
    """Return the function from an encoded image to the input of a predictor, float32 `[H, W, C]`.

    If TensorFlow is not imported yet, the function avoids the import where possible. The values are the same.
    """
    light = light_preprocess.function_of(pp)

    def prepare(encoded: bytes) -> np.ndarray:
        if light is not None and "tensorflow" not in sys.modules:
            try:
                return light(encoded)
            except light_preprocess.NotCovered:
                pass
        return _with_tensorflow(pp)(encoded)

    return prepare


@functools.lru_cache(maxsize=16)
def _with_tensorflow(pp: str) -> Callable[[bytes], np.ndarray]:
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            "Without TensorFlow, only 8-bit JPEG files (with simplejpeg) and PNG files (with Pillow) can be read, and "
            f"only {sorted(light_preprocess.OPERATIONS)} are available. Received: another image, or {pp!r}. "
            "Install TensorFlow: pip install 'keras-vision-transformers[cpu]'"
        ) from error
    from keras_vit.data import preprocess

    function = preprocess.single_image(pp)
    return lambda encoded: function(tf.constant(encoded)).numpy()


def unreadable(error: Exception) -> str | None:
    """Return the reason why an image cannot be read, or None if the image did not cause the error."""
    tf = sys.modules.get("tensorflow")
    if tf is None or not isinstance(error, tf.errors.OpError):
        return None
    from keras_vit.data import errors

    return f"not a readable image: {errors.describe(error)}"
