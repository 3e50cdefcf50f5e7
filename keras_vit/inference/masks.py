"""Masks of classes, one per pixel: their size, their colors, their files and their run lengths."""

import collections
import os
import struct
import zlib
from collections.abc import Sequence

import numpy as np

from keras_vit import _io, _spec
from keras_vit._palette import overlay, palette
from keras_vit.inference import preparation

_CUTTING = ("central_crop", "pad")


def dtype(classes: int) -> str:
    """Return the type of masks: uint8, or int32 if 255 is the number of a class and not that of ignored pixels."""
    return "uint8" if classes <= 255 else "int32"


def check_preprocess(pp: str) -> None:
    """Refuse a preprocessing that shows the model something else than the whole image."""
    cutting = [call.text for call in _spec.parse(pp) if call.name in _CUTTING]
    if cutting:
        raise ValueError(
            "A mask of the size of the image needs a preprocessing that shows the model the whole image, such as "
            f"'resize(512)|value_range(-1, 1)' (--preprocess). Received: preprocess={pp!r}, with {', '.join(cutting)}."
        )


def decoding(pp: str) -> str:
    """Return the operation of a preprocessing string that decodes an image."""
    first = _spec.parse(pp)[0]
    return first.text if first.name == "decode" else "decode"


def read_pixels(content: bytes, pp: str) -> np.ndarray:
    """Return the pixels of an encoded image as a preprocessing string decodes it, uint8 `[h, w, C]`."""
    return preparation.image_function(decoding(pp))(content).astype(np.uint8)


def resized(mask: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Return a mask `[H, W]` at another (height, width): the nearest pixel of each, in whole numbers."""
    rows, columns = (
        (2 * np.arange(new, dtype=np.int64) + 1) * old // (2 * new) for new, old in zip(size, mask.shape, strict=True)
    )
    return mask[rows][:, columns]


def shares(mask: np.ndarray, classes: int) -> np.ndarray:
    """Return the share of the pixels that each class has, `[classes]`."""
    return np.bincount(mask.ravel(), minlength=classes) / mask.size


def to_runs(mask: np.ndarray) -> np.ndarray:
    """Return the run lengths of a mask, row by row: pairs of class and number of pixels, int32 `[R, 2]`."""
    flat = mask.ravel()
    starts = np.flatnonzero(np.concatenate([[True], flat[1:] != flat[:-1]]))
    return np.stack([flat[starts], np.diff(starts, append=flat.size)], axis=-1).astype(np.int32)


def from_runs(runs: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Return the mask of (height, width) of run lengths `[R, 2]`; pairs of no pixels, which fill batches, are passed.

    Example:
    >>> from_runs(np.array([[0, 3], [2, 1], [0, 0]]), (2, 2)).tolist()
    [[0, 0], [0, 2]]
    """
    classes, counts = np.asarray(runs).T
    if counts.min(initial=0) < 0 or counts.sum() != size[0] * size[1]:
        raise ValueError(f"Run lengths must add up to the {size[0]} x {size[1]} pixels. Received: {counts.sum()}.")
    return np.repeat(classes, counts).reshape(size)


def to_png(pixels: np.ndarray) -> bytes:
    """Return a mask, integers `[H, W]`, as a PNG file of class numbers, or an image, uint8 `[H, W, C]`, as it is.

    A mask of numbers up to 255 has the colors of `palette`; one of larger numbers is gray and has 16 bits. An image has
    1, 3 or 4 channels.

    Example:
    >>> from_png(to_png(np.array([[0, 1], [2, 255]]))).tolist()
    [[0, 1], [2, 255]]
    """
    height, width = pixels.shape[:2]
    is_deep = pixels.ndim == 2 and bool(pixels.max(initial=0) > 255)
    depth, colors = (16, 0) if is_deep else (8, 3 if pixels.ndim == 2 else {1: 0, 3: 2, 4: 6}[pixels.shape[2]])
    rows = np.ascontiguousarray(pixels, ">u2" if is_deep else np.uint8).view(np.uint8).reshape(height, -1)
    # Each row begins with its filter: 2, the difference to the row above.
    filtered = np.concatenate([np.full((height, 1), 2, np.uint8), np.diff(rows, axis=0, prepend=np.uint8(0))], axis=1)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colors, 0, 0, 0))]
    chunks += [(b"PLTE", palette(256).tobytes())] if colors == 3 else []
    chunks += [(b"IDAT", zlib.compress(filtered.tobytes(), 6)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def from_png(content: bytes) -> np.ndarray:
    """Return the class numbers in a PNG file, int32 `[H, W]`, of a palette or of gray with 1 to 16 bits.

    Raises:
        ValueError: If it is another file, is damaged, or has too many pixels.
    """
    import tensorflow as tf  # only to read masks

    from keras_vit.data import errors, masks

    try:
        return masks.decode(tf.constant(content), masks.MAX_CLASSES).numpy()
    except tf.errors.OpError as error:
        raise ValueError(f"Expected a PNG file of class numbers. Received: {errors.describe(error)}.") from error


def file_names(folder: str, paths: Sequence[str]) -> list[tuple[str, str]]:
    """Return the names of mask and overlay in a folder for each image file, `NAME.png` and `NAME_overlay.png`.

    If two images have the same name, the names include the folders of the images, below the folder of all.

    Raises:
        ValueError: If two of them are equal, or one is an image itself.
    """
    stems = [os.path.splitext(os.path.basename(path))[0] for path in paths]
    if len(set(stems)) < len(stems):
        whole = [os.path.splitext(os.path.abspath(path))[0] for path in paths]
        stems = [os.path.relpath(path, os.path.commonpath(map(os.path.dirname, whole))) for path in whole]
    stems = [os.path.join(folder, stem) for stem in stems]
    names = [(f"{stem}.png", f"{stem}_overlay.png") for stem in stems]
    taken = collections.Counter(os.path.realpath(name) for pair in names for name in pair)
    taken.update(map(os.path.realpath, paths))
    twice = [name for name, count in taken.items() if count > 1]
    if twice:
        raise ValueError(
            f"The masks in --output={folder} have the names of their images, which must differ, and be in another "
            f"folder. Received: two files {twice[0]!r}."
        )
    return names


def write_files(names: tuple[str, str], mask: np.ndarray, pixels: np.ndarray) -> None:
    """Write a mask `[h, w]`, and the image under its colors, as PNG files."""
    for name, content in zip(names, (mask, overlay(pixels, mask)), strict=True):
        with _io.atomic_file(name) as temporary, open(temporary, "wb") as file:
            file.write(to_png(content))
