"""Image sizes, read from the header of a file without decoding it.

Guards against decompression bombs: a file of a few kilobytes can claim gigabytes of pixels, so sizes are checked before
memory is allocated. The input pipeline and exported models share these checks, which only use TensorFlow operations.

GIF and JPEG XL are refused, because their frames may be larger than their headers state.
"""

import tensorflow as tf

MAX_SCANS = 500


def check(encoded: tf.Tensor, max_pixels: int, untrusted: bool = False) -> tf.Tensor:
    """Return the encoded image; fail if it is too large. `untrusted` also refuses a JPEG with many scans."""
    pixels = pixel_count(encoded)
    known = pixels > 0
    if not untrusted:
        known |= tf.equal(encoded, "")  # the decoder has a better message for an empty file
    checks = [
        tf.debugging.Assert(known, ["Expected a JPEG, PNG, BMP or WebP image."]),
        tf.debugging.Assert(pixels <= max_pixels, [f"an image of more than {max_pixels:,} pixels:", pixels]),
    ]
    if untrusted:
        few = tf.cond(tf.io.is_jpeg(encoded), lambda: count_scans(encoded) <= MAX_SCANS, lambda: tf.constant(True))
        checks.append(tf.debugging.Assert(few, [f"a JPEG file of more than {MAX_SCANS} scans"]))
    with tf.control_dependencies(checks):
        return tf.identity(encoded)


def pixel_count(encoded: tf.Tensor) -> tf.Tensor:
    """Return the number of pixels that decoding an image file allocates, an int64 scalar; 0 for other formats."""
    return tf.cond(tf.io.is_jpeg(encoded), lambda: _jpeg(encoded), lambda: _pixels_of_others(encoded))


# Makes a function one node of the calling graph. TensorFlow visits every node of a branch even if the branch is not
# taken: the branches of the other formats took a tenth of the time of decoding a JPEG.
ONE_NODE = {"_noinline": True}


@tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False, experimental_attributes=ONE_NODE)
def _pixels_of_others(encoded: tf.Tensor) -> tf.Tensor:
    # Traced once and called in every pipeline.
    return tf.case(
        [
            (has(encoded, b"\x89PNG"), lambda: _png(encoded)),
            (has(encoded, b"BM"), lambda: _bmp(encoded)),
            (is_webp(encoded), lambda: _webp(encoded)),
        ],
        default=lambda: tf.constant(0, tf.int64),
    )


def is_webp(encoded: tf.Tensor) -> tf.Tensor:
    """Return whether a file is WebP."""
    return has(encoded, b"RIFF") & has(encoded, b"WEBP", 8)


def count_scans(encoded: tf.Tensor) -> tf.Tensor:
    """Count the scans of a JPEG file. The decoder processes the whole image once per scan."""
    data = tf.io.decode_raw(encoded, tf.uint8)
    # Inside a scan, 0xff is only followed by 0 or a restart marker, so these two bytes begin a scan.
    return tf.math.count_nonzero((data[:-1] == 0xFF) & (data[1:] == 0xDA))


def has(encoded: tf.Tensor, magic: bytes, start: int | tf.Tensor = 0) -> tf.Tensor:
    """Return whether a file has the bytes `magic` at `start`."""
    return tf.equal(_text(encoded, start, len(magic)), magic)


def read(encoded: tf.Tensor, start: int | tf.Tensor, count: int) -> tf.Tensor:
    """Read bytes of a file, int64 `[count]`, padded with zeros after its end."""
    return tf.cast(tf.io.decode_raw(_text(encoded, start, count), tf.uint8, fixed_length=count), tf.int64)


def _text(encoded: tf.Tensor, start: int | tf.Tensor, count: int) -> tf.Tensor:
    end = tf.strings.length(encoded)
    start = tf.minimum(tf.cast(start, tf.int64), tf.cast(end, tf.int64))
    return tf.strings.substr(encoded, start, tf.constant(count, tf.int64))


def number(data: tf.Tensor, little_endian: bool = True) -> tf.Tensor:
    """Return the unsigned number in the last axis, which has up to seven bytes."""
    size = data.shape[-1]
    scale = [256 ** (i if little_endian else size - 1 - i) for i in range(size)]
    return tf.reduce_sum(data * tf.constant(scale, tf.int64), axis=-1)


def _area(height: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    return tf.minimum(height, 2**31 - 1) * tf.minimum(width, 2**31 - 1)  # without overflow


def _jpeg(encoded: tf.Tensor) -> tf.Tensor:
    height, width, _ = tf.unstack(tf.cast(tf.image.extract_jpeg_shape(encoded), tf.int64))
    return _area(height, width)


def _png(encoded: tf.Tensor) -> tf.Tensor:
    header = read(encoded, 0, 24)
    return _area(number(header[20:24], False), number(header[16:20], False))


def _bmp(encoded: tf.Tensor) -> tf.Tensor:
    header = read(encoded, 0, 26)
    height = number(header[22:26])
    height = tf.where(height >= 2**31, 2**32 - height, height)  # negative where the top row is stored first
    return _area(height, number(header[18:22]))


def _webp(encoded: tf.Tensor) -> tf.Tensor:
    header = read(encoded, 0, 30)

    def lossless():
        bits = number(header[21:25])
        return _area(bits // 2**14 % 2**14 + 1, bits % 2**14 + 1)

    return tf.case(
        [
            (has(encoded, b"VP8 ", 12), lambda: _area(number(header[28:30]) % 2**14, number(header[26:28]) % 2**14)),
            (has(encoded, b"VP8L", 12), lossless),
        ],
        default=lambda: _area(number(header[27:30]) + 1, number(header[24:27]) + 1),
    )
