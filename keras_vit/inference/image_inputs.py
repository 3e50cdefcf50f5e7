"""Images as users pass them: files and folders, contents of files, or pixels."""

import functools
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_vit.inference import masks
from keras_vit.inference.model_card import ModelCard
from keras_vit.util import image_files

_ORIENTATION = 0x0112  # tag in Exif


class NamedImage(NamedTuple):
    """Image with a name, and a function that returns the content of its file."""

    name: str
    read: Callable[[], bytes]


def listed(images: Any) -> list[Any]:
    """Return images as a list. An array, even of several images, is one item."""
    if isinstance(images, (list, tuple)) and not isinstance(images, NamedImage):
        return list(images)
    single = isinstance(images, (str, bytes, os.PathLike, NamedImage)) or hasattr(images, "shape") or _is_pil(images)
    return [images] if single or not isinstance(images, Iterable) else list(images)


def prepared(images: Any, card: ModelCard, shape: Sequence[int | None] | None) -> tuple[list[Any], np.ndarray | None]:
    """Return images as a list, and as an array `[B, H, W, C]` if they are preprocessed.

    Arrays of floats are preprocessed images. Integers are pixels, except for a model with uint8 inputs: uint8 arrays of
    the model's image shape are preprocessed. `shape` is the expected shape of an image, if any.
    """
    items = listed(images)
    if not items:
        raise ValueError("`images` must have at least one image. Received: none.")
    arrays = [np.asarray(item) for item in items if hasattr(item, "shape")]
    for array in arrays:
        is_input = array.dtype == np.uint8 and card.input_dtype == "uint8" and array.shape[-3:] == card.image_shape
        if array.dtype.kind in "biuO" and not is_input:
            return items, None
    if len(arrays) < len(items):
        return items, None
    batch = arrays[0] if len(arrays) == 1 else np.stack(arrays)
    batch = batch[None] if batch.ndim == 3 else batch
    if shape and (batch.ndim != 4 or any(n not in (None, m) for m, n in zip(batch.shape[1:], shape, strict=True))):
        raise ValueError(
            f"Preprocessed images must have the shape {(None, *shape)}, and pixels must be integers from 0 to 255. "
            f"Received: shape {batch.shape}, dtype {batch.dtype}."
        )
    return items, batch


def of_files(paths: Iterable[str]) -> Iterator[NamedImage]:
    """Yield image files as named images, without reading them."""
    return (NamedImage(path, functools.partial(_read, path)) for path in paths)


def stream(images: Any) -> Iterator[NamedImage]:
    """Yield images of any form as named images. An iterator of named images is read lazily."""
    if isinstance(images, Iterator):
        first = list(itertools.islice(images, 1))
        images = itertools.chain(first, images)
        if first and isinstance(first[0], NamedImage):
            return images
    return iter(of_any(images))


def of_any(images: Any) -> list[NamedImage]:
    """Return images of any form as named images, in order.

    Args:
        images: Paths of images, folders, glob patterns or lists of paths (see `image_files.find`); contents of image
            files; PIL images; or arrays of pixels from 0 to 255, `[N, H, W, C]` or `[H, W, C]`.

    Raises:
        FileNotFoundError: If no file exists.
        ValueError: If an array does not contain pixels.
        TypeError: If `images` has another type.
    """
    items = listed(images)
    if all(isinstance(item, (str, os.PathLike)) for item in items):
        return list(of_files(image_files.find([os.fspath(item) for item in items])))
    found: list[NamedImage] = []
    for item in items:
        item = _file_of(item) if _is_pil(item) else item
        if isinstance(item, NamedImage):
            found.append(item)
        elif isinstance(item, (str, os.PathLike)):
            found += of_files(image_files.find([os.fspath(item)]))
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


def _is_pil(image: Any) -> bool:
    return hasattr(image, "getexif")


def _file_of(image: Any) -> bytes:
    """Return a PIL image as a file, so that each mode and orientation is decoded as usual.

    A JPEG image that Pillow has not decoded yet is read from its file, because JPEG decoders differ in some values.
    All other images are written as PNG files.
    """
    if image.format in ("JPEG", "MPO") and image.tile and not image.decoderconfig and image.tell() == 0:
        position = image.fp.tell()
        image.fp.seek(0)
        content = image.fp.read()
        image.fp.seek(position)
        return content
    exif, oriented = image.getexif(), b""
    if exif.get(_ORIENTATION) in range(2, 9):
        oriented = type(exif)()
        oriented[_ORIENTATION] = exif[_ORIENTATION]
    if image.mode == "F":
        return _encode(np.asarray(image)[..., None])[0]
    if image.mode.startswith("I"):
        image = image.convert("I").convert("I;16")
    elif image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
        image = image.convert("RGB")
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1, exif=oriented, icc_profile=b"")
    return file.getvalue()


def _encode(pixels: np.ndarray) -> list[bytes]:
    """Encode an array of pixels, `[N, H, W, C]` or `[H, W, C]`, as PNG files."""
    pixels = pixels[None] if pixels.ndim == 3 else pixels
    if pixels.ndim != 4 or pixels.shape[-1] not in (1, 3, 4) or not pixels.size or pixels.dtype.kind not in "biuf":
        raise ValueError(
            "`images` must be arrays of pixels [N, H, W, C] with 1, 3 or 4 channels. Received: shape "
            f"{pixels.shape}, dtype {pixels.dtype}."
        )
    low, high = float(pixels.min()), float(pixels.max())
    if low < 0 or high > 255 or pixels.dtype.kind in "bf" and high <= 1:
        raise ValueError(
            "`images` must be pixels from 0 to 255, before the preprocessing, which is part of the artifact. Received: "
            f"dtype {pixels.dtype}, values from {low:g} to {high:g}."
        )
    return [masks.to_png(image) for image in np.round(pixels).astype(np.uint8)]
