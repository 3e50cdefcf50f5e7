"""Segmentation masks: resizing, PNG files and run lengths."""

import collections
import colorsys
import os
import struct
import zlib
from collections.abc import Sequence

import numpy as np

from keras_vit.inference import preparation
from keras_vit.util import file_io, literal_calls

_CUTTING = ("central_crop", "pad")


def check_preprocess(pp: str) -> None:
    """Raise an error if the preprocessing crops or pads the image."""
    cutting = [call.text for call in literal_calls.parse(pp) if call.name in _CUTTING]
    if cutting:
        raise ValueError(
            "For masks of the size of the image, the preprocessing must keep the whole image, as in "
            f"'resize(512)|value_range(-1, 1)' (--preprocess). Received: preprocess={pp!r}, with {', '.join(cutting)}."
        )


def decoding(pp: str) -> str:
    """Return the operation of a preprocessing string that decodes an image."""
    first = literal_calls.parse(pp)[0]
    return first.text if first.name == "decode" else "decode"


def read_pixels(content: bytes, pp: str) -> np.ndarray:
    """Decode an image like a preprocessing string, to uint8 `[h, w, C]`."""
    return preparation.image_function(decoding(pp))(content).astype(np.uint8)


def resized(mask: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Resize a mask `[H, W]` to (height, width) by its nearest pixels, in integer arithmetic."""
    rows, columns = (
        (2 * np.arange(new, dtype=np.int64) + 1) * old // (2 * new) for new, old in zip(size, mask.shape, strict=True)
    )
    return mask[rows][:, columns]


def to_runs(mask: np.ndarray) -> np.ndarray:
    """Encode a mask as run lengths, row by row: pairs of a class and a number of pixels, int32 `[R, 2]`."""
    flat = mask.ravel()
    starts = np.flatnonzero(np.concatenate([[True], flat[1:] != flat[:-1]]))
    return np.stack([flat[starts], np.diff(starts, append=flat.size)], axis=-1).astype(np.int32)


def from_runs(runs: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Decode run lengths `[R, 2]` to a mask of the given (height, width). Pairs of 0 pixels are padding of a batch.

    Example:
    >>> from_runs(np.array([[0, 3], [2, 1], [0, 0]]), (2, 2)).tolist()
    [[0, 0], [0, 2]]
    """
    classes, counts = np.asarray(runs).T
    if counts.min(initial=0) < 0 or counts.sum() != size[0] * size[1]:
        raise ValueError(f"Run lengths must add up to the {size[0]} x {size[1]} pixels. Received: {counts.sum()}.")
    return np.repeat(classes, counts).reshape(size)


def to_png(pixels: np.ndarray) -> bytes:
    """Encode a mask of class numbers, integers `[H, W]`, or an image, uint8 `[H, W, C]`, as a PNG file.

    A mask with numbers up to 255 gets the colors of `palette`. A mask with larger numbers is gray and has 16 bits. An
    image has 1, 3 or 4 channels.

    Example:
    >>> from_png(to_png(np.array([[0, 1], [2, 255]]))).tolist()
    [[0, 1], [2, 255]]
    """
    height, width = pixels.shape[:2]
    is_deep = pixels.ndim == 2 and bool(pixels.max(initial=0) > 255)
    depth, colors = (16, 0) if is_deep else (8, 3 if pixels.ndim == 2 else {1: 0, 3: 2, 4: 6}[pixels.shape[2]])
    rows = np.ascontiguousarray(pixels, ">u2" if is_deep else np.uint8).view(np.uint8).reshape(height, -1)
    # Each row begins with the number of its filter: 2 is the difference from the row above.
    filtered = np.concatenate([np.full((height, 1), 2, np.uint8), np.diff(rows, axis=0, prepend=np.uint8(0))], axis=1)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colors, 0, 0, 0))]
    chunks += [(b"PLTE", palette(256).tobytes())] if colors == 3 else []
    chunks += [(b"IDAT", zlib.compress(filtered.tobytes(), 6)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def from_png(content: bytes) -> np.ndarray:
    """Decode a PNG file with a palette or 1 to 16 bits of gray to class numbers, int32 `[H, W]`.

    Raises:
        ValueError: If the content is not such a file, is damaged, or has too many pixels.
    """
    import tensorflow as tf  # only to read masks

    from keras_vit.data import errors, masks

    try:
        return masks.decode(tf.constant(content), masks.MAX_CLASSES).numpy()
    except tf.errors.OpError as error:
        raise ValueError(f"Expected a PNG file of class numbers. Received: {errors.describe(error)}.") from error


def file_names(folder: str, paths: Sequence[str]) -> list[tuple[str, str]]:
    """Return paths in a folder for the mask and the overlay of each image: `NAME.png` and `NAME_overlay.png`.

    If two images have the same name, NAME includes the folders of the image below the common folder of all images.

    Raises:
        ValueError: If two paths are equal, or a path is the path of an image.
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
            f"The masks in --output={folder} have the names of their images. These must differ from each other, and "
            f"be in another folder. Received: two files {twice[0]!r}."
        )
    return names


def write_files(names: tuple[str, str], mask: np.ndarray, pixels: np.ndarray) -> None:
    """Write a mask `[h, w]`, and the image overlaid with the mask, as PNG files."""
    for name, content in zip(names, (mask, overlay(pixels, mask)), strict=True):
        with file_io.atomic_file(name) as temporary, open(temporary, "wb") as file:
            file.write(to_png(content))


# Gray for class 0, which is often the background, and Okabe and Ito's colors, which color-blind people can distinguish.
_FIRST = [
    *[(120, 120, 120), (230, 159, 0), (86, 180, 233), (0, 158, 115)],
    *[(240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167)],
]


def palette(num_classes: int) -> np.ndarray:
    """Return the color of each class, uint8 `[num_classes, 3]`. Class 255, used for ignored pixels, is white.

    After the first eight colors, the hues are spaced by the golden angle. The colors repeat after 256 classes.
    """
    others = [
        colorsys.hsv_to_rgb(0.618034 * number % 1.0, (0.85, 0.5)[number % 2], (0.95, 0.75, 0.55)[number % 3])
        for number in range(255 - len(_FIRST))
    ]
    colors = np.concatenate([_FIRST, np.round(255 * np.array(others)), [[255, 255, 255]]]).astype(np.uint8)
    return colors[np.arange(num_classes) % 256]


def overlay(pixels: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Overlay images, uint8 `[..., H, W, 1 or 3]`, with the half-transparent colors of their masks `[..., H, W]`.

    The result is uint8 `[..., H, W, 3]`. Pixels with a negative class do not change.
    """
    colors = palette(int(mask.max(initial=0)) + 1)[mask]  # [..., H, W, 3]
    return np.where(mask[..., None] < 0, pixels, (pixels.astype(np.uint16) + colors) // 2).astype(np.uint8)
