"""Images as users pass them: files and folders, contents of files, or pixels."""

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from keras_vit import _image_files
from keras_vit.inference import masks
from keras_vit.inference.model_card import ModelCard


class NamedImage(NamedTuple):
    """Image with a name, and a function that returns the content of its file."""

    name: str
    read: Callable[[], bytes]


def are_prepared(images: Any, card: ModelCard) -> bool:
    """Return whether images are preprocessed. Files, their contents, PIL images and uint8 pixels are not.

    For a model with uint8 inputs, uint8 arrays of the model's image shape are preprocessed.
    """
    first = images[0] if isinstance(images, (list, tuple)) and images else images
    if isinstance(first, (str, os.PathLike, bytes, NamedImage)):
        return False
    first = np.asarray(first)
    return first.dtype != np.uint8 or card.input == "uint8" and first.shape[-3:] == card.image_shape


def of_files(paths: Iterable[str]) -> list[NamedImage]:
    """Return image files as named images, without reading them."""
    return [NamedImage(path, functools.partial(_read, path)) for path in paths]


def of_any(images: Any) -> list[NamedImage]:
    """Return images of any form as named images, in order.

    Args:
        images: Paths of images, folders, glob patterns or lists of paths (see `_image_files.find`); contents of image
            files; or arrays of pixels from 0 to 255, `[N, H, W, C]` or `[H, W, C]`.

    Raises:
        FileNotFoundError: If no file exists.
        ValueError: If an array does not contain pixels.
        TypeError: If `images` has another type.
    """
    items = images if isinstance(images, (list, tuple)) and not isinstance(images, NamedImage) else [images]
    if all(isinstance(item, (str, os.PathLike)) for item in items):
        return of_files(_image_files.find([os.fspath(item) for item in items]))
    found: list[NamedImage] = []
    for item in items:
        if isinstance(item, NamedImage):
            found.append(item)
        elif isinstance(item, (str, os.PathLike)):
            found += of_files(_image_files.find([os.fspath(item)]))
        elif isinstance(item, bytes) or hasattr(item, "shape") or hasattr(item, "__array_interface__"):
            contents = [item] if isinstance(item, bytes) else _encode(np.asarray(item))
            found += [
                NamedImage(f"image {number}", functools.partial(bytes, content))
                for number, content in enumerate(contents, start=len(found))
            ]
        else:
            raise TypeError(
                "`images` must be paths of images or folders, contents of image files or arrays of pixels. "
                f"Received: {type(item).__name__}."
            )
    return found


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _encode(pixels: np.ndarray) -> list[bytes]:
    """Encode an array of pixels, `[N, H, W, C]` or `[H, W, C]`, as PNG files."""
    pixels = pixels[None] if pixels.ndim == 3 else pixels
    if pixels.ndim != 4 or pixels.shape[-1] not in (1, 3, 4) or not pixels.size or pixels.dtype.kind not in "biuf":
        raise ValueError(
            "`images` must be arrays of pixels [N, H, W, C] with 1, 3 or 4 channels. Received: shape "
            f"{pixels.shape}, dtype {pixels.dtype}."
        )
    low, high = float(pixels.min()), float(pixels.max())
    if pixels.dtype != np.uint8 and not (low >= 0 and 1 < high <= 255):
        raise ValueError(
            "`images` must be pixels from 0 to 255, before the preprocessing, which is part of the artifact. Received: "
            f"dtype {pixels.dtype}, values from {low:g} to {high:g}."
        )
    return [masks.to_png(image) for image in np.round(pixels).astype(np.uint8)]
