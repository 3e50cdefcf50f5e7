"""From encoded images to the input of a predictor, with TensorFlow only where it is needed."""

import functools
import sys
from collections.abc import Callable

import numpy as np

from keras_vit.inference import light_preprocess


@functools.lru_cache(maxsize=16)
def image_function(pp: str) -> Callable[[bytes], np.ndarray]:
    """Return the function from an encoded image to the input of a predictor, float32 `[H, W, C]`.

    A process that has not imported TensorFlow does without it where it can. The values are the same.
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
            "Without TensorFlow, images are JPEG (with simplejpeg) or PNG files (with Pillow) of 8 bits, and "
            f"{sorted(light_preprocess.OPERATIONS)} prepare them. Received: another image, or {pp!r}. "
            "Install TensorFlow: pip install 'keras-vision-transformers[cpu]'"
        ) from error
    from keras_vit.data import preprocess

    function = preprocess.single_image(pp)
    return lambda encoded: function(tf.constant(encoded)).numpy()


def unreadable(error: Exception) -> str | None:
    """Return what is wrong with an image by the error of its preparation; None for errors of another kind."""
    tf = sys.modules.get("tensorflow")
    if tf is None or not isinstance(error, tf.errors.OpError):
        return None
    from keras_vit.data import errors

    return f"not a readable image: {errors.describe(error)}"
