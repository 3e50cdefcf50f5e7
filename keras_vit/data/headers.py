"""Number of pixels that decoding an image file allocates, read from the file without decoding it.

A file of a few kilobytes can claim gigabytes of pixels, so sizes are checked before memory is taken. Everything here is
made of TensorFlow operations, so that the input pipeline and the exported model check files in the same way.

Limits of the check: a JPEG XL file can hold frames larger than its header says, so exported models refuse that format.
"""

import tensorflow as tf

MAX_SCANS = 500

_WINDOW = 2_048  # bytes of a GIF that are looked at together
_LONGEST_JUMP = 1_024  # more than a color table with the descriptor in front of it, or a block of data
_MAX_BOXES = 32


def check(encoded: tf.Tensor, max_pixels: int, known_only: bool = False) -> tf.Tensor:
    """Pass an encoded image on, or fail before it is decoded.

    Args:
        encoded: Content of the file, a scalar string.
        max_pixels: Largest allowed number of pixels, see `pixel_count`.
        known_only: Whether to refuse JPEG XL, unknown formats, and JPEG files of more than `MAX_SCANS` scans, as is
            right for files of strangers. Otherwise the decoder decides.

    Returns:
        `encoded`.

    Raises:
        tf.errors.InvalidArgumentError: If the file is refused.
    """
    pixels = pixel_count(encoded)
    checks = [tf.debugging.Assert(pixels <= max_pixels, [f"an image of more than {max_pixels:,} pixels:", pixels])]
    if known_only:
        known = (pixels > 0) & ~is_jpeg_xl(encoded)
        checks.append(tf.debugging.Assert(known, ["Expected a JPEG, PNG, GIF, BMP or WebP image."]))
        few = tf.cond(tf.io.is_jpeg(encoded), lambda: count_scans(encoded) <= MAX_SCANS, lambda: tf.constant(True))
        checks.append(tf.debugging.Assert(few, [f"a JPEG file of more than {MAX_SCANS} scans"]))
    with tf.control_dependencies(checks):
        return tf.identity(encoded)


@tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)  # traced once, called in every pipeline
def pixel_count(encoded: tf.Tensor) -> tf.Tensor:
    """Read how many pixels decoding an image file allocates.

    It is the product of the sides for JPEG, PNG, BMP, WebP (of the canvas, which its frames cannot exceed) and JPEG XL.
    A decoder of GIF unpacks all frames and makes an array as high as the highest and as wide as the widest frame: for
    GIF it is the largest of the sum over all frames, the size of that array and the size of the screen.

    Args:
        encoded: Content of the file, a scalar string.

    Returns:
        int64 scalar. 0 for other formats.
    """
    return tf.case(
        [
            (tf.io.is_jpeg(encoded), lambda: _jpeg(encoded)),
            (_has(encoded, b"\x89PNG"), lambda: _png(encoded)),
            (_has(encoded, b"GIF8"), lambda: _gif(encoded)),
            (_has(encoded, b"BM"), lambda: _bmp(encoded)),
            (is_webp(encoded), lambda: _webp(encoded)),
            (is_jpeg_xl(encoded), lambda: _jpeg_xl(encoded)),
        ],
        default=lambda: tf.constant(0, tf.int64),
    )


def is_webp(encoded: tf.Tensor) -> tf.Tensor:
    """Return whether a file is WebP."""
    return _has(encoded, b"RIFF") & _has(encoded, b"WEBP", 8)


def is_jpeg_xl(encoded: tf.Tensor) -> tf.Tensor:
    """Return whether a file is JPEG XL, with or without a container."""
    return _has(encoded, b"\xff\x0a") | _has(encoded, b"JXL ", 4)


def count_scans(encoded: tf.Tensor) -> tf.Tensor:
    """Count the scans of a JPEG file. The decoder goes through the whole image for each."""
    data = tf.io.decode_raw(encoded, tf.uint8)
    # Inside of a scan, 0xff is followed by 0 or the number of a restart, so this is a marker.
    return tf.math.count_nonzero((data[:-1] == 0xFF) & (data[1:] == 0xDA))


def _has(encoded: tf.Tensor, magic: bytes, offset: int = 0) -> tf.Tensor:
    start = tf.minimum(offset, tf.strings.length(encoded))
    return tf.equal(tf.strings.substr(encoded, start, len(magic)), magic)


def _bytes(encoded: tf.Tensor, start: tf.Tensor | int, count: int) -> tf.Tensor:
    """int64 [count]: bytes of a file, zeros behind its end."""
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
    extension, and the next frame or extension follows. To follow the chain block by block would take an operation of
    TensorFlow per 255 bytes. Instead, a run of full blocks is passed over at once. For the bytes behind it, a table
    holds how far the block at each byte reaches and what it adds. Joining each entry with the one that it points to
    doubles the reach of all.

    References:
        https://www.w3.org/Graphics/GIF/spec-gif89a.txt
    """
    header = _bytes(encoded, 0, 13)
    screen = _area(_number(header[8:10]), _number(header[6:8]))
    start = 13 + _color_table(header[10])
    # As if the data of something ended in front of the first block.
    chain = b"\0" + tf.strings.substr(encoded, tf.minimum(start, _length(encoded)), _length(encoded))
    size = _length(chain)
    chain = tf.pad(tf.io.decode_raw(chain, tf.uint8), [[0, _WINDOW + _LONGEST_JUMP]])

    def window(position, area, height, width):
        position += 256 * _leading_trues(chain[position:size:256] == 255)
        table = _gif_window(tf.cast(chain[position : position + _WINDOW + _LONGEST_JUMP], tf.int64))
        (table,) = tf.while_loop(
            lambda table: table[0, 0] < _WINDOW, lambda table: [_join(table, tf.gather(table, table[:, 0]))], [table]
        )
        reach = table[0]
        position = tf.where(reach[0] > _WINDOW + _LONGEST_JUMP, size, position + reach[0])
        return position, area + reach[1], tf.maximum(height, reach[2]), tf.maximum(width, reach[3])

    zero = tf.constant(0, tf.int64)
    _, area, height, width = tf.while_loop(
        lambda position, *_: position < size, window, [zero, zero, zero, zero], parallel_iterations=1
    )
    return tf.reduce_max([area, _area(height, width), screen])


def _leading_trues(flags: tf.Tensor) -> tf.Tensor:
    """Return the number of trues in front of the first false, int64."""
    return tf.where(tf.concat([~flags, [True]], axis=0))[0, 0]


def _length(encoded: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.strings.length(encoded), tf.int64)


def _color_table(flags: tf.Tensor) -> tf.Tensor:
    """Number of bytes of the color table that `flags` tell of."""
    return tf.where(flags >= 128, 3 * tf.bitwise.left_shift(tf.ones_like(flags), flags % 8 + 1), 0)


def _gif_window(data: tf.Tensor) -> tf.Tensor:
    """Make the table of a window: for each byte, where the next block begins, and area, height and width of a frame."""
    count = _WINDOW + _LONGEST_JUMP
    index = tf.range(count, dtype=tf.int64)
    padded = tf.pad(data, [[0, 11]])

    def ahead(offset):
        return padded[offset : offset + count]

    is_end = data == 0
    is_frame, is_extension = is_end & (ahead(1) == 0x2C), is_end & (ahead(1) == 0x21)
    behind_frame = index + 12 + _color_table(ahead(10))  # the descriptor, its colors and the size of a code
    following = tf.where(is_frame, behind_frame, tf.where(is_extension, index + 3, count + 1))
    following = tf.where(is_end, following, index + 1 + data)
    inside = index < _WINDOW  # the next window begins with what is behind
    following = tf.where(inside, following, index)
    width = tf.where(is_frame & inside, ahead(6) + 256 * ahead(7), 0)
    height = tf.where(is_frame & inside, ahead(8) + 256 * ahead(9), 0)
    table = tf.stack([following, height * width, height, width], axis=1)
    rest = tf.constant([[count, 0, 0, 0], [count + 1, 0, 0, 0]], tf.int64)  # the last is the end of the file
    return tf.concat([table, rest], axis=0)


def _join(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    sums = first[:, 1:2] + second[:, 1:2]
    return tf.concat([second[:, 0:1], sums, tf.maximum(first[:, 2:], second[:, 2:])], axis=1)


def _jpeg_xl(encoded: tf.Tensor) -> tf.Tensor:
    """Read the size of a JPEG XL file.

    References:
        ISO/IEC 18181-1, SizeHeader; ISO/IEC 18181-2, boxes.
    """

    def box(position, _, count):
        """Move on to the content of the box that holds the image, over those that do not."""
        head = _bytes(encoded, position, 8)
        size, name = _number(head[:4], False), _number(head[4:], False)
        whole, part = (tf.equal(name, int.from_bytes(kind, "big")) for kind in (b"jxlc", b"jxlp"))
        inside = position + tf.where(part, tf.constant(12, tf.int64), 8)
        found = whole | part
        return tf.where(found, inside, position + tf.maximum(size, 8)), found, count + 1

    def in_container():
        position, found, _ = tf.while_loop(
            lambda position, found, count: ~found & (count < _MAX_BOXES) & (position < _length(encoded)),
            box,
            [tf.constant(0, tf.int64), tf.constant(False), tf.constant(0)],
        )
        return tf.where(found, position, _length(encoded))

    start = tf.cond(_has(encoded, b"\xff\x0a"), lambda: tf.constant(0, tf.int64), in_container)
    data = _bytes(encoded, start + 2, 10)
    bits = tf.reshape(tf.bitwise.right_shift(data[:, None], tf.range(8, dtype=tf.int64)) % 2, [-1])  # [80]

    def read(position, count):
        """Read up to 30 bits, lowest first."""
        chosen = tf.gather(tf.pad(bits, [[0, 64]]), position + tf.range(30, dtype=tf.int64))
        weights = tf.where(tf.range(30, dtype=tf.int64) < count, 2 ** tf.range(30, dtype=tf.int64), 0)
        return tf.reduce_sum(chosen * weights)

    is_small = bits[0] == 1

    def side(position):
        """Read a side, and return where the next field begins."""
        width = tf.gather(tf.constant([9, 13, 18, 30], tf.int64), read(position, 2))
        small, large = (1 + read(position, 5)) * 8, 1 + read(position + 2, width)
        return tf.where(is_small, small, large), position + tf.where(is_small, tf.constant(5, tf.int64), 2 + width)

    height, position = side(tf.constant(1, tf.int64))
    ratio = read(position, 3)
    numerator = tf.gather(tf.constant([0, 1, 12, 4, 3, 16, 5, 2], tf.int64), ratio)
    denominator = tf.gather(tf.constant([1, 1, 10, 3, 2, 9, 4, 1], tf.int64), ratio)
    width = tf.where(ratio == 0, side(position + 3)[0], height * numerator // denominator)
    return _area(height, width)
