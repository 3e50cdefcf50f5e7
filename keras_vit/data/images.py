"""Decoding of image files as users have them: upright, of three channels and 8 bits, and limited in size.

Everything here is made of TensorFlow operations, so that it becomes part of an exported model.
"""

import functools
from collections.abc import Callable

import tensorflow as tf

from keras_vit.data import headers

# The Python Imaging Library takes larger images for decompression bombs. They are half a gigabyte of RGB.
MAX_PIXELS = 178_956_970


def _one_node(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Make a function one node of graphs, for rare branches; outside of graphs its errors are short."""
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

    The content decides the format. Palettes and gray become RGB, CMYK is converted, an alpha channel is dropped, 16
    bits are cut to the upper 8, and the first frame of an animation is taken. The size is checked first.
    """
    encoded = headers.check(encoded, max_pixels)
    if precise:
        # `decode_jpeg` reads PNG and other formats as well.
        image = tf.image.decode_jpeg(encoded, channels=channels, dct_method="INTEGER_ACCURATE")
    elif channels == 3:
        image = _decode_rgb(encoded)
    else:
        image = tf.cond(
            _decodes_to_gray(encoded),
            lambda: tf.io.decode_image(encoded, channels=1, expand_animations=False),
            lambda: tf.image.rgb_to_grayscale(_decode_rgb(encoded)),
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
    """Decode an image outside of graphs, as `decode` does, at the speed of a graph and with short error messages."""
    try:
        return _decode_function()(encoded)
    except tf.errors.OpError:
        return decode(encoded)  # again, for a message without the graph around it


def decode_and_crop(
    encoded: tf.Tensor,
    window_of: Callable[[tf.Tensor], tf.Tensor],
    exif: bool = True,
    max_pixels: int = MAX_PIXELS,
    smallest: int | None = None,
) -> tf.Tensor:
    """Decode only a part of a JPEG, to uint8 `[h, w, 3]`. Other formats are decoded whole and cut.

    `window_of` maps the shape of the stored image, int32 `[3]`, to (y, x, height, width), int32 `[4]`. With `smallest`
    a JPEG is decoded at 1/2, 1/4 or 1/8 of its size, as long as both sides of the part keep so many pixels.
    """
    encoded = headers.check(encoded, max_pixels)

    def from_jpeg():
        window = window_of(tf.image.extract_jpeg_shape(encoded))
        image = _decode_part(encoded, window, smallest)
        return upright(image, encoded) if exif else image

    def from_other():
        image = _decode_other(encoded)
        y, x, height, width = tf.unstack(window_of(tf.shape(image)))
        return image[y : y + height, x : x + width]

    image = tf.cond(tf.io.is_jpeg(encoded), from_jpeg, from_other)
    image.set_shape([None, None, 3])
    return image


def _decode_part(encoded: tf.Tensor, window: tf.Tensor, smallest: int | None) -> tf.Tensor:
    """Decode a window of a JPEG. At a smaller scale, only the low frequencies of its 8 x 8 blocks are transformed."""
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
    """Turn and mirror `image` `[H, W, C]` as the Exif orientation of the encoded JPEG says."""
    # An Exif block follows the start of the file or the 18 bytes of a JFIF block.
    head = tf.strings.substr(encoded, 0, 30)
    has_exif = tf.strings.regex_full_match(head, rb"\C{6}Exif\x00\x00\C*|\C{24}Exif\x00\x00")  # \C is any byte

    return tf.cond(has_exif, lambda: _turned(image, encoded), lambda: image)


@_one_node
def _turned(image: tf.Tensor, encoded: tf.Tensor) -> tf.Tensor:
    start = tf.where(tf.equal(tf.strings.substr(encoded, 6, 4), b"Exif"), 12, 30)
    orientation = _orientation(encoded, start)
    # Orientations 5 to 8 are mirrored at the diagonal; what remains is mirroring at the axes.
    image = tf.cond(orientation >= 5, lambda: tf.transpose(image, [1, 0, 2]), lambda: image)
    upside_down = tf.reduce_any(tf.equal(orientation, [3, 4, 7, 8]))
    mirrored = tf.reduce_any(tf.equal(orientation, [2, 3, 6, 7]))
    image = tf.cond(upside_down, lambda: tf.reverse(image, [0]), lambda: image)
    return tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image)


def _orientation(encoded: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    """Read the orientation, 1 to 8, from the TIFF structure at `start`. It is 1 if there is none."""
    # The block is at most 64 KiB; zeros behind it keep damaged offsets and counts inside the array.
    block = tf.io.decode_raw(tf.strings.substr(encoded, start, 65536), tf.uint8)
    block = tf.cast(tf.concat([block, tf.zeros([65536 + 2 + 12 * 512], tf.uint8)], 0), tf.int32)
    little = tf.equal(block[0], ord("I"))

    def number(pair):  # [..., 2] -> [...]
        return tf.where(little, pair[..., 0] + 256 * pair[..., 1], 256 * pair[..., 0] + pair[..., 1])

    # Of the four bytes of the offset two suffice: the directory lies within the block.
    offset = tf.where(little, number(block[4:6]), number(block[6:8]))
    count = number(block[offset : offset + 2])
    entries = tf.reshape(block[offset + 2 : offset + 2 + 12 * 512], [512, 12])
    found = tf.equal(number(entries[:, 0:2]), 0x0112) & (tf.range(512) < count)
    orientation = tf.reduce_max(tf.where(found, number(entries[:, 8:10]), 0))
    return tf.where((orientation >= 1) & (orientation <= 8), orientation, 1)


def _decode_rgb(encoded: tf.Tensor) -> tf.Tensor:
    """Decode to three channels."""
    image = tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.io.decode_image(encoded, channels=3, expand_animations=False),
        lambda: _decode_other(encoded),
    )
    image.set_shape([None, None, 3])
    return image


@_one_node
def _decode_other(encoded: tf.Tensor) -> tf.Tensor:
    """Decode a file that is not JPEG. TensorFlow drops an alpha channel by itself, except that of WebP."""
    return tf.cond(
        headers.is_webp(encoded),
        lambda: tf.io.decode_image(encoded, channels=0, expand_animations=False)[:, :, :3],
        lambda: tf.io.decode_image(encoded, channels=3, expand_animations=False),
    )


def _decodes_to_gray(encoded: tf.Tensor) -> tf.Tensor:
    """Return whether `tf.io.decode_image` can give one channel: of PNG, and of JPEG except CMYK."""
    png = tf.equal(tf.strings.substr(encoded, 0, 4), b"\x89PNG")
    return tf.cond(
        tf.io.is_jpeg(encoded), lambda: tf.image.extract_jpeg_shape(encoded)[2] < 4, lambda: tf.identity(png)
    )
