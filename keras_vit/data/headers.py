"""Number of pixels that decoding an image file allocates, read from the file without decoding it.

A file of a few kilobytes can claim gigabytes of pixels, so sizes are checked before memory is taken. Everything here is
made of TensorFlow operations, so that the input pipeline and the exported model check files in the same way.

JPEG XL is refused, because its frames may be larger than its header states. A GIF is read to its end; exported models
refuse it.
"""

import tensorflow as tf

MAX_SCANS = 500
MAX_BLOCKS = 20_000  # steps of a loop through a GIF, which take a second


def check(encoded: tf.Tensor, max_pixels: int, untrusted: bool = False) -> tf.Tensor:
    """Pass an image on, or fail before it is decoded; `untrusted` also refuses GIF and JPEG of many scans."""
    if untrusted:
        # The blocks of a GIF are not followed, which may take a second.
        formats, pixels = "JPEG, PNG, BMP or WebP", pixel_count(tf.where(_has(encoded, b"GIF8"), "", encoded))
        known = pixels > 0
    else:
        formats, pixels = "JPEG, PNG, GIF, BMP or WebP", pixel_count(encoded)
        known = (pixels > 0) | tf.equal(encoded, "")  # the decoder has a better message for an empty file
    checks = [
        tf.debugging.Assert(known, [f"Expected a {formats} image."]),
        tf.debugging.Assert(pixels <= max_pixels, [f"an image of more than {max_pixels:,} pixels:", pixels]),
    ]
    if untrusted:
        few = tf.cond(tf.io.is_jpeg(encoded), lambda: count_scans(encoded) <= MAX_SCANS, lambda: tf.constant(True))
        checks.append(tf.debugging.Assert(few, [f"a JPEG file of more than {MAX_SCANS} scans"]))
    with tf.control_dependencies(checks):
        return tf.identity(encoded)


def pixel_count(encoded: tf.Tensor) -> tf.Tensor:
    """Read how many pixels decoding an image file allocates, an int64 scalar; 0 for JPEG XL and unknown formats.

    For GIF it is the largest of the sum over all frames, the array of the highest by the widest frame, and the screen.
    """
    return tf.cond(tf.io.is_jpeg(encoded), lambda: _jpeg(encoded), lambda: _pixels_of_others(encoded))


# Makes a function one node of the graph that calls it. TensorFlow visits every node of a branch, even if the
# branch is not taken: those for the formats other than JPEG took a tenth of the time of decoding a JPEG.
ONE_NODE = {"_noinline": True}


@tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False, experimental_attributes=ONE_NODE)
def _pixels_of_others(encoded: tf.Tensor) -> tf.Tensor:
    # Traced once, called in every pipeline.
    return tf.case(
        [
            (_has(encoded, b"\x89PNG"), lambda: _png(encoded)),
            (_has(encoded, b"GIF8"), lambda: _gif(encoded)),
            (_has(encoded, b"BM"), lambda: _bmp(encoded)),
            (is_webp(encoded), lambda: _webp(encoded)),
        ],
        default=lambda: tf.constant(0, tf.int64),
    )


def is_webp(encoded: tf.Tensor) -> tf.Tensor:
    """Return whether a file is WebP."""
    return _has(encoded, b"RIFF") & _has(encoded, b"WEBP", 8)


def count_scans(encoded: tf.Tensor) -> tf.Tensor:
    """Count the scans of a JPEG file. The decoder goes through the whole image for each."""
    data = tf.io.decode_raw(encoded, tf.uint8)
    # Inside of a scan, 0xff is followed by 0 or the number of a restart, so this is a marker.
    return tf.math.count_nonzero((data[:-1] == 0xFF) & (data[1:] == 0xDA))


def _has(encoded: tf.Tensor, magic: bytes, offset: int = 0) -> tf.Tensor:
    start = tf.minimum(offset, tf.strings.length(encoded))
    return tf.equal(tf.strings.substr(encoded, start, len(magic)), magic)


def _bytes(encoded: tf.Tensor, start: tf.Tensor | int, count: int) -> tf.Tensor:
    """int64 [count]: bytes of a file, zeros after its end."""
    start = tf.minimum(tf.cast(start, tf.int64), _length(encoded))
    text = tf.strings.substr(encoded, start, tf.constant(count, tf.int64))
    return tf.cast(tf.io.decode_raw(text, tf.uint8, fixed_length=count), tf.int64)


def _number(data: tf.Tensor, little_endian: bool = True) -> tf.Tensor:
    """Read the last axis, of up to seven bytes, as an unsigned number."""
    size = data.shape[-1]
    scale = [256 ** (i if little_endian else size - 1 - i) for i in range(size)]
    return tf.reduce_sum(data * tf.constant(scale, tf.int64), axis=-1)


def _area(height: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    return tf.minimum(height, 2**31 - 1) * tf.minimum(width, 2**31 - 1)  # without overflow


def _jpeg(encoded: tf.Tensor) -> tf.Tensor:
    height, width, _ = tf.unstack(tf.cast(tf.image.extract_jpeg_shape(encoded), tf.int64))
    return _area(height, width)


def _png(encoded: tf.Tensor) -> tf.Tensor:
    header = _bytes(encoded, 0, 24)
    return _area(_number(header[20:24], False), _number(header[16:20], False))


def _bmp(encoded: tf.Tensor) -> tf.Tensor:
    header = _bytes(encoded, 0, 26)
    height = _number(header[22:26])
    height = tf.where(height >= 2**31, 2**32 - height, height)  # negative where the top row is stored first
    return _area(height, _number(header[18:22]))


def _webp(encoded: tf.Tensor) -> tf.Tensor:
    header = _bytes(encoded, 0, 30)

    def lossless():
        bits = _number(header[21:25])
        return _area(bits // 2**14 % 2**14 + 1, bits % 2**14 + 1)

    return tf.case(
        [
            (_has(encoded, b"VP8 ", 12), lambda: _area(_number(header[28:30]) % 2**14, _number(header[26:28]) % 2**14)),
            (_has(encoded, b"VP8L", 12), lossless),
        ],
        default=lambda: _area(_number(header[27:30]) + 1, _number(header[24:27]) + 1),
    )


def _gif(encoded: tf.Tensor) -> tf.Tensor:
    """Follow the blocks of a GIF through the whole file.

    The file is a chain: each block of data begins with its length, a length of 0 ends the data of a frame or an
    extension, and the next frame or extension follows. A run of full blocks is passed over at once.

    References:
        https://www.w3.org/Graphics/GIF/spec-gif89a.txt
    """
    header = _bytes(encoded, 0, 13)
    start = 13 + _color_table(header[10])
    # As if the data of something ended in front of the first block.
    chain = b"\0" + tf.strings.substr(encoded, tf.minimum(start, _length(encoded)), _length(encoded))
    size = _length(chain)
    data = tf.io.decode_raw(chain + b"\0" * 268, tf.uint8)  # a full block and a descriptor may end after the file

    def block(position, area, height, width):
        is_full = data[position : tf.minimum(position + 2**16, size) : 256] == 255
        position += 256 * tf.where(tf.concat([~is_full, [True]], axis=0))[0, 0]
        head = tf.ensure_shape(tf.cast(data[position : position + 12], tf.int64), [12])
        is_end = head[0] == 0
        is_frame, is_extension = is_end & (head[1] == 0x2C), is_end & (head[1] == 0x21)
        after_frame = position + 12 + _color_table(head[10])  # the descriptor, its colors and the size of a code
        following = tf.where(is_frame, after_frame, tf.where(is_extension, position + 3, size))
        following = tf.where(is_end, following, position + 1 + head[0])
        w, h = (tf.where(is_frame, _number(head[i : i + 2]), 0) for i in (6, 8))
        return following, area + h * w, tf.maximum(height, h), tf.maximum(width, w)

    zero = tf.constant(0, tf.int64)
    position, area, height, width = tf.while_loop(
        lambda position, *_: position < size, block, [zero] * 4, maximum_iterations=MAX_BLOCKS
    )
    screen = _area(_number(header[8:10]), _number(header[6:8]))
    pixels = tf.reduce_max([area, _area(height, width), screen])
    return tf.where(position < size, tf.int64.max, pixels)


def _length(encoded: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.strings.length(encoded), tf.int64)


def _color_table(flags: tf.Tensor) -> tf.Tensor:
    """Number of bytes of the color table that `flags` announce."""
    return tf.where(flags >= 128, 3 * tf.bitwise.left_shift(tf.ones_like(flags), flags % 8 + 1), 0)
