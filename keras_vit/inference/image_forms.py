"""Real images in the forms that Keras users have: files, patterns, contents of files, arrays."""

import os
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.inference.sample_images import SampleImages, from_files


def of_any(images: Any) -> SampleImages:
    """Take images in any form that Keras users have.

    Args:
        images: One or several file names or patterns, contents of image files, or arrays of pixels from 0 to 255,
            `[N, H, W, C]` or `[H, W, C]`, of any type.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If there are none, or an array does not contain pixels.
        TypeError: If they are something else.
    """
    several = images if isinstance(images, (list, tuple)) else [images]
    contents: list[bytes] = []
    names: list[str] = []
    for number, item in enumerate(several):
        if isinstance(item, bytes):
            contents.append(item)
            names.append(f"image {number}")
        elif isinstance(item, (str, os.PathLike)):
            path = os.fspath(item)
            if os.path.isdir(path):
                example = os.path.join(path, "*.jpg")
                raise ValueError(f"`images` must be files, such as {example!r}. Received: the directory {path!r}.")
            found = from_files([path])
            contents += found.contents
            names += found.names
        elif hasattr(item, "shape"):
            encoded = _encode(np.asarray(item))
            contents += encoded
            names += [f"image {number}" if len(encoded) == 1 else f"image {i}" for i in range(len(encoded))]
        else:
            raise TypeError(
                "`images` must be file names, patterns, contents of image files or arrays of pixels. "
                f"Received: {type(item).__name__}."
            )
    if not contents:
        raise ValueError("`images` must have at least one real image to verify with. Received: none.")
    return SampleImages(contents, None, names)


def _encode(pixels: np.ndarray) -> list[bytes]:
    """Return an array of pixels, `[N, H, W, C]` or `[H, W, C]`, as PNG files."""
    received = f"Received: shape {pixels.shape}, dtype {pixels.dtype}"
    pixels = pixels[None] if pixels.ndim == 3 else pixels
    if pixels.ndim != 4 or pixels.shape[-1] not in (1, 3, 4) or 0 in pixels.shape[1:]:
        raise ValueError(f"`images` must be arrays of pixels [N, H, W, C] with 1, 3 or 4 channels. {received}.")
    if not np.issubdtype(pixels.dtype, np.number) or np.issubdtype(pixels.dtype, np.complexfloating):
        raise ValueError(f"`images` must be arrays of numbers. {received}.")
    if pixels.dtype != np.uint8 and pixels.size:
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= 0 and 1 < high <= 255):
            raise ValueError(
                "`images` must be pixels from 0 to 255, before the preprocessing, which is part of the artifact. "
                f"{received}, values from {low:g} to {high:g}."
            )
        pixels = np.round(np.asarray(pixels, np.float32)).astype(np.uint8)
    return [tf.io.encode_png(image).numpy() for image in pixels]
