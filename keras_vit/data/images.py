"""Decoding of real-world image files: Exif orientation, channels, bit depth, size limits.

Decoding only uses TensorFlow operations, so that it can be part of an exported model.
"""

import functools
from collections.abc import Callable

import tensorflow as tf

from keras_vit.data import headers

# Pillow treats larger images as decompression bombs. This many pixels take half a gigabyte as RGB.
MAX_PIXELS = 178_956_970


def _one_node(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Make a function one node of a graph, for rare branches. Outside graphs, its errors are short."""
    in_graph = tf.function(function, autograph=False, experimental_attributes=headers.ONE_NODE)

    @functools.wraps(function)
    def call(*args):
        return function(*args) if tf.executing_eagerly() else in_graph(*args)

    return call


def decode(
    encoded: tf.Tensor,
    channels: int = 3,
    precise: bool = False,
    exif: bool = True,
    max_pixels: int = MAX_PIXELS,
) -> tf.Tensor:
    """Decode an image of any format, a scalar string, to uint8 `[H, W, channels]`.

    The format is detected from the content, and the size is checked before decoding. Palettes, gray and CMYK are
    converted to RGB, and alpha channels are dropped. 16-bit values are reduced to their upper 8 bits. Only the first
    frame of an animation is decoded.
    """
    encoded = headers.check(encoded, max_pixels)
    method = "INTEGER_ACCURATE" if precise else ""
    if channels == 3:
        image = _decode_rgb(encoded, method)
    else:
        image = tf.cond(
            _decodes_to_gray(encoded),
            lambda: tf.image.decode_jpeg(encoded, channels=1, dct_method=method),  # also decodes PNG
            lambda: tf.image.rgb_to_grayscale(_decode_rgb(encoded, method)),
        )
    if exif:
        image = upright(image, encoded)
    image.set_shape([None, None, channels])
    return image


@functools.cache
def _decode_function():
    signature = [tf.TensorSpec([], tf.string)]
    return tf.function(decode, input_signature=signature, autograph=False).get_concrete_function()


def decode_eagerly(encoded: tf.Tensor) -> tf.Tensor:
    """Decode an image eagerly like `decode`, with the speed of a graph and with short error messages."""
    try:
        return _decode_function()(encoded)
    except tf.errors.OpError:
        return decode(encoded)  # again, for an error message without the trace of the graph


def decode_example(example: dict[str, tf.Tensor]) -> tf.Tensor:
    """Decode the image of an example eagerly; fail if its mask has another size."""
    image = example["image"]
    image = decode_eagerly(image) if image.dtype == tf.string else image
    if "mask" in example:
        check_size(image, example["mask"])
    return image


def check_size(image: tf.Tensor, mask: tf.Tensor) -> tf.Operation:
    """Return an assertion that an upright image and its mask have the same size."""
    sizes = tf.shape(image)[:2], tf.shape(mask)[:2]
    text = "expected a mask of the size of its image, after turning it upright. Height and width of the image:"
    return tf.debugging.Assert(tf.reduce_all(sizes[0] == sizes[1]), [text, sizes[0], "of the mask:", sizes[1]])


def decode_and_crop(
    encoded: tf.Tensor,
    window_of: Callable[[tf.Tensor], tf.Tensor],
    exif: bool = True,
    max_pixels: int = MAX_PIXELS,
    smallest: int | None = None,
) -> tf.Tensor:
    """Decode only a crop of a JPEG, to uint8 `[h, w, 3]`. Other formats are decoded whole and then cropped.

    `window_of` maps the shape of the stored image, int32 `[3]`, to the (y, x, height, width) of the crop, int32 `[4]`.
    With `smallest`, a JPEG is decoded at 1/2, 1/4 or 1/8 of its size if both sides of the crop still have at least
    `smallest` pixels.
    """
    encoded = headers.check(encoded, max_pixels)

    def from_jpeg():
        window = window_of(tf.image.extract_jpeg_shape(encoded))
        return _decode_part(encoded, window, smallest)

    def from_other():
        image = _decode_other(encoded)
        y, x, height, width = tf.unstack(window_of(tf.shape(image)))
        return image[y : y + height, x : x + width]

    image = tf.cond(tf.io.is_jpeg(encoded), from_jpeg, from_other)
    image.set_shape([None, None, 3])
    return upright(image, encoded) if exif else image


def _decode_part(encoded: tf.Tensor, window: tf.Tensor, smallest: int | None) -> tf.Tensor:
    """Decode a window of a JPEG. A smaller scale decodes only the low frequencies of the 8 x 8 blocks."""
    if smallest is None:
        return tf.image.decode_and_crop_jpeg(encoded, window, channels=3)
    ratios = (1, 2, 4, 8)
    at_ratio = [
        functools.partial(tf.image.decode_and_crop_jpeg, encoded, window // ratio, channels=3, ratio=ratio)
        for ratio in ratios
    ]
    smaller = tf.reduce_min(window[2:]) // ratios[1:] >= smallest
    return tf.switch_case(tf.math.count_nonzero(smaller, dtype=tf.int32), at_ratio)


def upright(image: tf.Tensor, encoded: tf.Tensor) -> tf.Tensor:
    """Turn and mirror `image` `[H, W, C]` according to the Exif orientation of its file."""
    return tf.cond(_may_have_exif(encoded), lambda: _turned(image, encoded), lambda: image)


def _may_have_exif(encoded: tf.Tensor) -> tf.Tensor:
    """Return whether a file may have an Exif block. Without Exif, the slow search is skipped."""

    def in_jpeg():
        head = headers.read(encoded, 0, 22)
        first = tf.where(head[3] == 0xE0, head[21], head[3])  # marker of the first segment after JFIF
        return (first >= 0xE0) | _near_exif(encoded)  # markers from 0xE0 are metadata, smaller markers are tables

    return tf.cond(tf.io.is_jpeg(encoded), in_jpeg, lambda: tf.strings.regex_full_match(encoded, rb"\C*(eXIf|EXIF)\C*"))


def _near_exif(encoded: tf.Tensor) -> tf.Tensor:
    return tf.strings.regex_full_match(tf.strings.substr(encoded, 0, 4096), rb"\C*Exif\x00\x00\C*")  # \C: any byte


@_one_node
def _turned(image: tf.Tensor, encoded: tf.Tensor) -> tf.Tensor:
    orientation = _orientation(encoded, _find_exif(encoded))
    # Orientations 5 to 8 are transposed first. The remaining step mirrors the image at its axes.
    image = tf.cond(orientation >= 5, lambda: tf.transpose(image, [1, 0, 2]), lambda: image)
    upside_down = tf.reduce_any(tf.equal(orientation, [3, 4, 7, 8]))
    mirrored = tf.reduce_any(tf.equal(orientation, [2, 3, 6, 7]))
    image = tf.cond(upside_down, lambda: tf.reverse(image, [0]), lambda: image)
    return tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image)


def _find_exif(encoded: tf.Tensor) -> tf.Tensor:
    """Return the position of the TIFF structure in a file's Exif block; the end of the file if it has no Exif block."""
    end = tf.cast(tf.strings.length(encoded), tf.int64)
    png, near = headers.has(encoded, b"\x89PNG"), _near_exif(encoded)

    def segment(offset):  # of a JPEG
        head = headers.read(encoded, offset, 4)
        found = (head[1] == 0xE1) & headers.has(encoded, b"Exif\0\0", offset + 4)
        # Bytes between the segments are skipped.
        size = tf.where((head[0] == 0xFF) & (head[1] < 0xFF), 2 + headers.number(head[2:], False), 1)
        # In nearly all files Exif precedes the tables. Search beyond the tables only if "Exif" is near the beginning.
        last = (head[1] == 0xDA) | (head[1] < 0xE0) & (head[0] == 0xFF) & ~near
        return tf.where(last, end, offset + size), tf.where(found, offset + 4, end)

    def chunk(offset):  # of a PNG or WebP
        head = headers.read(encoded, offset, 8)
        size = headers.number(head[4:])
        size = tf.where(png, headers.number(head[:4], False) + 4, size + size % 2)  # PNG: checksum; WebP: even size
        found = tf.where(png, headers.has(encoded, b"eXIf", offset + 4), headers.has(encoded, b"EXIF", offset))
        last = headers.has(encoded, b"IEND", offset + 4)
        return tf.where(last, end, offset + 8 + size), tf.where(found, offset + 8, end)

    def search(step, start):
        return tf.while_loop(
            lambda offset, found: (offset < end) & (found == end),
            lambda offset, found: step(offset),
            (tf.cast(start, tf.int64), end),
            maximum_iterations=10_000,  # a malicious file may have millions
        )[1]

    flagged = headers.has(encoded, b"VP8X", 12) & (headers.read(encoded, 20, 1)[0] // 8 % 2 == 1)
    start = tf.where(png, 8, tf.where(flagged, 12, tf.strings.length(encoded)))
    found = tf.cond(tf.io.is_jpeg(encoded), lambda: search(segment, 2), lambda: search(chunk, start))
    return tf.where(headers.has(encoded, b"Exif\0\0", found), found + 6, found)


def _orientation(encoded: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    """Read the orientation, 1 to 8, from the TIFF structure at `start`; 1 if it is missing."""
    head = headers.read(encoded, start, 8)
    little = tf.equal(head[0], ord("I"))

    def number(pair):  # [..., 2] -> [...]
        return tf.where(little, pair[..., 0] + 256 * pair[..., 1], 256 * pair[..., 0] + pair[..., 1])

    # Two of the four bytes of the offset suffice, because the directory is within a block of 64 KiB.
    offset = tf.where(little, number(head[4:6]), number(head[6:8]))
    directory = headers.read(encoded, start + offset, 2 + 12 * 512)
    entries = tf.reshape(directory[2:], [512, 12])
    found = tf.equal(number(entries[:, 0:2]), 0x0112) & (tf.range(512, dtype=tf.int64) < number(directory[:2]))
    orientation = tf.reduce_max(tf.where(found, number(entries[:, 8:10]), 0))
    return tf.where((orientation >= 1) & (orientation <= 8), orientation, 1)


def _decode_rgb(encoded: tf.Tensor, method: str) -> tf.Tensor:
    """Decode a file of any format to three channels."""
    image = tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.image.decode_jpeg(encoded, channels=3, dct_method=method),
        lambda: _decode_other(encoded),
    )
    image.set_shape([None, None, 3])
    return image


@_one_node
def _decode_other(encoded: tf.Tensor) -> tf.Tensor:
    """Decode a file that is not a JPEG. TensorFlow drops alpha channels itself, except for WebP."""
    return tf.case(
        [
            (headers.is_webp(encoded), lambda: _decode_webp(encoded)),
            (headers.has(encoded, b"BM"), lambda: _decode_bmp(encoded)),
        ],
        default=lambda: tf.io.decode_image(encoded, channels=3, expand_animations=False),
    )


def _decode_webp(encoded: tf.Tensor) -> tf.Tensor:
    # If an animation lacks the alpha flag, TensorFlow allocates three channels but writes four. Therefore set the flags
    # of animation and alpha, and clear the flags of other chunks.
    animated = headers.has(encoded, b"VP8X", 12) & (headers.read(encoded, 20, 1)[0] // 2 % 2 == 1)
    size = tf.strings.length(encoded)
    encoded = tf.cond(
        animated,
        lambda: tf.strings.join([tf.strings.substr(encoded, 0, 20), b"\x12", tf.strings.substr(encoded, 21, size)]),
        lambda: encoded,
    )
    return tf.io.decode_image(encoded, channels=0, expand_animations=False)[:, :, :3]


def _decode_bmp(encoded: tf.Tensor) -> tf.Tensor:
    header = headers.read(encoded, 0, 66)
    start, size, compression = (headers.number(header[i : i + 4]) for i in (10, 14, 30))
    bits = headers.number(header[28:30])
    in_order = (compression == 3) & tf.reduce_all(header[54:] == list(b"\0\0\xff\0\0\xff\0\0\xff\0\0\0"))  # BGR
    whole = (size >= 40) & (14 + size <= start) & (start <= tf.cast(tf.strings.length(encoded), tf.int64))
    known = whole & ((compression == 0) | in_order) & tf.reduce_any(bits == [8, 24, 32])
    with tf.control_dependencies([tf.debugging.Assert(known, ["Expected BMP of 8, 24 or 32 bits, uncompressed."])]):
        encoded = tf.identity(encoded)
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)

    def from_palette():  # TensorFlow returns indices into the palette
        palette = tf.strings.substr(encoded, 14 + size, start - size - 14)
        palette = tf.reshape(tf.io.decode_raw(palette, tf.uint8, fixed_length=1024), [256, 4])
        return tf.gather(palette[:, 2::-1], tf.cast(image[:, :, 0], tf.int32))  # BGR_ -> RGB

    return tf.cond(bits == 8, from_palette, lambda: image)


def _decodes_to_gray(encoded: tf.Tensor) -> tf.Tensor:
    """Return whether TensorFlow can decode a file to one channel: a PNG, or a JPEG that is not CMYK."""
    png = tf.equal(tf.strings.substr(encoded, 0, 4), b"\x89PNG")
    return tf.cond(
        tf.io.is_jpeg(encoded), lambda: tf.image.extract_jpeg_shape(encoded)[2] < 4, lambda: tf.identity(png)
    )
