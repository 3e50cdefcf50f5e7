"""Masks of class indices: decoding and encoding of PNG files, and preprocessing.

TensorFlow decodes a PNG with a palette to colors. To obtain the indices, this module replaces the header of the file
with the header of a gray image. Like the decoding of images, it only uses TensorFlow operations.
"""

import struct
import zlib
from collections.abc import Callable

import tensorflow as tf

from keras_vit.data import headers, images
from keras_vit.data.parse import IGNORED

MAX_CLASSES = 65_535  # the largest 16-bit number, which also marks ignored pixels
_GRAY, _PALETTE = 0, 3


def ignored(num_classes: int) -> int:
    """Return the value of ignored pixels: 255, or 65,535 if 255 is the index of a class."""
    return IGNORED if num_classes <= IGNORED else MAX_CLASSES


def decode(
    encoded: tf.Tensor,
    num_classes: int,
    offset: int = 0,
    foreground: int | None = None,
    origin: tf.Tensor | str = "",
) -> tf.Tensor:
    """Decode a PNG of class indices, a scalar string, to int32 `[H, W]`.

    The file is gray (1 to 16 bits) or has a palette, whose colors do not matter. `offset` is added to the indices.
    Pixels with the value `foreground` are class 1. `origin` is the name of the file, for messages.

    Ignored pixels become `ignored(num_classes)`. A pixel is ignored if its index plus `offset` is negative. It is also
    ignored if its index is 65,535 (in 16-bit files), or 255 with at most 255 classes.
    """
    header = headers.read(encoded, 0, 26)
    bits, kind = header[24], header[25]
    checks = [
        (headers.has(encoded, b"\x89PNG"), "must be a PNG file"),
        (tf.strings.length(encoded) > 33, "is incomplete: it ends within its header"),
        ((kind == _GRAY) | (kind == _PALETTE), "has colors or transparency; expected class indices, gray or a palette"),
    ]
    with tf.control_dependencies([tf.debugging.Assert(right, ["the mask", origin, text]) for right, text in checks]):
        encoded = headers.check(encoded, images.MAX_PIXELS)
    encoded = tf.cond(kind == _PALETTE, lambda: _as_gray(encoded), lambda: encoded)
    values = tf.cond(
        bits == 16,
        lambda: tf.cast(tf.io.decode_png(encoded, channels=1, dtype=tf.uint16), tf.int32),
        lambda: tf.cast(tf.io.decode_png(encoded, channels=1), tf.int32),
    )[..., 0]
    # The decoder scales values of 1, 2 and 4 bits to 0..255.
    values //= tf.cast(tf.where(bits < 8, 255 // (tf.bitwise.left_shift(tf.ones_like(bits), bits) - 1), 1), tf.int32)
    if foreground is not None:
        values = tf.where(values == foreground, 1 - offset, values)
    return to_classes(values, num_classes, offset, origin)


def to_classes(values: tf.Tensor, num_classes: int, offset: int = 0, origin: tf.Tensor | str = "") -> tf.Tensor:
    """Check the indices of a mask and return them as class numbers, int32. The arguments are as in `decode`."""
    left_out = (values == MAX_CLASSES) | (values + offset < 0)
    if num_classes <= IGNORED:
        left_out |= values == IGNORED
    highest = tf.reduce_max(tf.where(left_out, 0, values))
    text = f"and the last of the {num_classes} classes is {num_classes - 1 - offset}"
    message = ["the mask", origin, "has the index", highest, text]
    with tf.control_dependencies([tf.debugging.Assert(highest + offset < num_classes, message)]):
        return tf.where(left_out, ignored(num_classes), values + offset)


def _as_gray(encoded: tf.Tensor) -> tf.Tensor:
    """Return a PNG with a palette as a gray PNG of the indices."""
    # CRC-32 is linear: changing the color type changes the checksum by a constant.
    before, after = (zlib.crc32(b"IHDR" + bytes(9) + bytes([kind]) + bytes(3)) for kind in (_PALETTE, _GRAY))
    change = tf.constant(list(struct.pack(">I", before ^ after)), tf.int64)
    checksum = tf.bitwise.bitwise_xor(headers.read(encoded, 29, 4), change)
    checksum = tf.strings.reduce_join(tf.gather(tf.constant([bytes([value]) for value in range(256)]), checksum))
    start, end = tf.strings.substr(encoded, 0, 25), tf.strings.substr(encoded, 33, tf.strings.length(encoded))
    return tf.strings.join([start, bytes([_GRAY]), tf.strings.substr(encoded, 26, 3), checksum, end])


def encode(mask: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Encode a mask `[H, W]` as a gray PNG, with 16 bits if there are more than 255 classes."""
    return tf.io.encode_png(tf.cast(mask, tf.uint8 if num_classes <= IGNORED else tf.uint16)[..., None])


def processed(function: Callable[..., dict], num_classes: int) -> Callable[..., dict]:
    """Adapt a function from `preprocess.host_function` to examples with a mask, int32 `[H, W]`.

    Operations fill empty pixels of a mask with 255. If 255 is the index of a class, indices of 255 and above are
    increased by one before the call and decreased by one after it.
    """
    value, shifts = ignored(num_classes), num_classes > IGNORED

    def apply(example: dict, *args) -> dict:
        mask = example["mask"]
        if shifts:
            mask = tf.where(mask == value, IGNORED, tf.where(mask >= IGNORED, mask + 1, mask))
        example = function({**example, "mask": mask if shifts else tf.cast(mask, tf.uint8)}, *args)
        if "mask" not in example:
            return example
        mask = tf.cast(example["mask"], tf.int32)
        if shifts:
            mask = tf.where(mask == IGNORED, value, tf.where(mask > IGNORED, mask - 1, mask))
        return {**example, "mask": mask}

    return apply
