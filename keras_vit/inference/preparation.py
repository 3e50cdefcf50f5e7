"""Preprocessing of encoded images for a predictor, with TensorFlow only if needed."""

import functools
import re
import sys
from collections.abc import Callable

import numpy as np

from keras_vit.inference import light_preprocess

# Files that are not read, and how they begin.
_OTHERS = {
    "an empty file": rb"\Z",
    "GIF": rb"GIF8",
    "TIFF": rb"II\*\0|MM\0\*",
    "HEIC": rb".{4}ftyp(he|mif1|msf1)",
    "AVIF": rb".{4}ftypavi",
    "JPEG XL": rb"\xff\n|\0\0\0\x0cJXL ",
}


@functools.lru_cache(maxsize=16)
def image_function(pp: str) -> Callable[[bytes], np.ndarray]:
    """Return the function from an encoded image to the input of a predictor, float32 `[H, W, C]`.

    Where possible, the function does not use TensorFlow, which needs several times as long. The values are the same.
    """
    light = light_preprocess.function_of(pp)

    def prepare(encoded: bytes) -> np.ndarray:
        if light is not None:
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


def unreadable(error: Exception, content: bytes) -> str | None:
    """Return the reason why a file cannot be read, or None if neither the file nor its content caused the error."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    tf = sys.modules.get("tensorflow")
    if tf is None or not isinstance(error, tf.errors.OpError):
        return None
    from keras_vit.data import errors

    found = next((f" Received: {name}." for name, start in _OTHERS.items() if re.match(start, content, re.DOTALL)), "")
    return f"not a readable image: {errors.describe(error)}{found}"
