"""Decoding of 8-bit JPEG and PNG files without TensorFlow.

The pixels equal TensorFlow's bit for bit: simplejpeg contains the same decoder, with the same approximate cosine
transform. TensorFlow decodes all other files.
"""

import io
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

MAX_PIXELS = 178_956_970  # as in `keras_vit.data.images`
# For larger images, TensorFlow takes less time and memory. Its import takes as long as resizing an image of this size.
LARGE = 20_000_000
# Bit depth, color type, compression, filter and interlacing in the header -> number of channels.
PNG_CHANNELS = {b"\x08\0\0\0\0": 1, b"\x08\2\0\0\0": 3, b"\x08\6\0\0\0": 4}


class NotCovered(Exception):
    """TensorFlow must preprocess this image, or report its error."""


def decode(
    channels: int = 3, precise: bool = False, exif: bool = True, max_pixels: int = MAX_PIXELS
) -> Callable[[bytes], np.ndarray]:
    """Decode a file to uint8 `[H, W, channels]`."""
    if channels not in (1, 3):
        raise NotCovered

    def apply(encoded: bytes) -> np.ndarray:
        if encoded.startswith(b"\x89PNG"):
            return _decode_png(encoded, channels, min(max_pixels, LARGE))
        image = _decode_jpeg(encoded, channels, precise, min(max_pixels, LARGE))
        return _upright(image, encoded) if exif else image

    return apply


def _decode_jpeg(encoded: bytes, channels: int, precise: bool, max_pixels: int) -> np.ndarray:
    try:
        import simplejpeg
    except ImportError as error:
        raise NotCovered from error
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(encoded)
        if height * width > max_pixels or colors not in ("YCbCr", "Gray"):
            raise NotCovered
        return simplejpeg.decode_jpeg(encoded, "RGB" if channels == 3 else "Gray", fastdct=not precise, strict=True)
    except ValueError as error:  # damaged, or not a JPEG file
        raise NotCovered from error


def _decode_png(encoded: bytes, channels: int, max_pixels: int) -> np.ndarray:
    Image = import_pillow()
    height, width = int.from_bytes(encoded[20:24], "big"), int.from_bytes(encoded[16:20], "big")
    stored = PNG_CHANNELS.get(encoded[24:29], 0)
    if not stored or channels == 1 < stored or height * width > max_pixels:
        raise NotCovered
    try:
        # Check the data first: Pillow accepts some files that TensorFlow rejects, and leaves missing rows black.
        inflate, size = zlib.decompressobj(), height * (1 + width * stored)
        if len(inflate.decompress(_png_data(encoded), size + 1)) != size or not inflate.eof:
            raise NotCovered
        pixels = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB" if channels == 3 else "L"))
    except (OSError, ValueError, SyntaxError, zlib.error) as error:
        raise NotCovered from error
    return pixels if channels == 3 else pixels[:, :, None]


def import_pillow() -> Any:
    """Import Pillow's module `Image`."""
    try:
        from PIL import Image
    except ImportError as error:
        raise NotCovered from error
    return Image


def _png_data(encoded: bytes) -> bytes:
    """Return the compressed rows of a PNG file after checking its checksums."""
    data, start = [], 8
    while (name := encoded[start + 4 : start + 8]) != b"IEND":
        end = start + 8 + int.from_bytes(encoded[start : start + 4], "big")
        if zlib.crc32(encoded[start + 4 : end]) != int.from_bytes(encoded[end : end + 4], "big"):
            raise NotCovered
        if name == b"IDAT":
            data.append(encoded[start + 8 : end])
        elif start > 8 and not (name.isalpha() and name[0] > 90) or name in (b"acTL", b"eXIf"):
            raise NotCovered  # a chunk that must not be ignored
        start = end + 4
    return b"".join(data)


def _upright(image: np.ndarray, encoded: bytes) -> np.ndarray:
    """Rotate and flip an image according to its Exif orientation, like `keras_vit.data.images.upright`."""
    start = 20 if encoded[4:6] == b"\0\x10" else 2  # after the JFIF segment
    found = encoded[start : start + 2] + encoded[start + 4 : start + 10] == b"\xff\xe1Exif\0\0"
    if not found and b"Exif\0\0" in encoded:
        raise NotCovered
    orientation = _orientation(encoded[start + 10 : start + 10 + 65536 + 2 + 12 * 512]) if found else 1
    if orientation >= 5:
        image = image.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    return image[:, ::-1] if orientation in (2, 3, 6, 7) else image


def _orientation(block: bytes) -> int:
    """Return the orientation, 1 to 8, in a TIFF structure; 1 if it is missing."""
    block += bytes(2 + 12 * 512)
    order: Any = "little" if block[:1] == b"I" else "big"

    def number(offset: int) -> int:
        return int.from_bytes(block[offset : offset + 2], order)

    offset = number(4 if order == "little" else 6)
    entries = range(offset + 2, offset + 2 + 12 * min(number(offset), 512), 12)
    found = max((number(entry + 8) for entry in entries if number(entry) == 0x0112), default=0)
    return found if 1 <= found <= 8 else 1
