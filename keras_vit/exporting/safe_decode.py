"""Encoded pictures inside the exported graph: one that cannot be read or is too large does not fail the others."""

import tensorflow as tf

MAX_PIXELS = 50_000_000


def picture_size(contents: tf.Tensor) -> tf.Tensor:
    """Height and width of an encoded picture, from its header alone.

    Args:
        contents: Scalar string: a JPEG, PNG, GIF, BMP or WebP file.

    Returns:
        int64 `[2]`. (0, 0) where the format is none of these.
    """
    length = tf.strings.length(contents)
    # A padded header lets every branch read its bytes; a file shorter than its header then fails in the decoder.
    header = tf.cast(tf.io.decode_raw(tf.strings.substr(contents, 0, 32), tf.uint8, fixed_length=32), tf.int64)  # [32]

    def is_magic(text, offset=0):
        return tf.strings.substr(contents, tf.minimum(offset, length), len(text)) == text

    def number(first, count, little_endian):
        digits = header[first : first + count]
        scale = [256 ** (i if little_endian else count - 1 - i) for i in range(count)]
        return tf.reduce_sum(digits * tf.constant(scale, tf.int64))

    def png():
        return tf.stack([number(20, 4, False), number(16, 4, False)])

    def gif():
        return tf.stack([number(8, 2, True), number(6, 2, True)])

    def bmp():
        height = number(22, 4, True)
        height = tf.where(height >= 2**31, 2**32 - height, height)  # stored top row first: a negative number
        return tf.stack([height, number(18, 4, True)])

    def jpeg():
        return tf.cast(tf.io.extract_jpeg_shape(contents)[:2], tf.int64)

    def webp():
        lossy = tf.stack([number(28, 2, True) % 2**14, number(26, 2, True) % 2**14])
        bits = number(21, 4, True)
        lossless = tf.stack([bits // 2**14 % 2**14 + 1, bits % 2**14 + 1])
        extended = tf.stack([number(27, 3, True) + 1, number(24, 3, True) + 1])
        return tf.case(
            [(is_magic(b"VP8 ", 12), lambda: lossy), (is_magic(b"VP8L", 12), lambda: lossless)],
            default=lambda: extended,
        )

    return tf.case(
        [
            (is_magic(b"\xff\xd8\xff"), jpeg),
            (is_magic(b"\x89PNG"), png),
            (is_magic(b"GIF8"), gif),
            (is_magic(b"BM"), bmp),
            (is_magic(b"RIFF") & is_magic(b"WEBP", 8), webp),
        ],
        default=lambda: tf.zeros([2], tf.int64),
    )


def check_size(contents: tf.Tensor, max_pixels: int = MAX_PIXELS) -> tf.Tensor:
    """Passes an encoded picture on, or fails before it is decoded.

    A few kilobytes of PNG can hold gigabytes of one colour: memory has to be refused by the header.

    Args:
        contents: Scalar string.
        max_pixels: Largest allowed height x width.

    Returns:
        `contents`.
    """
    height, width = tf.unstack(picture_size(contents))
    # Each factor is below 2^32, so their product fits into int64 only after this first check.
    known = (height > 0) & (width > 0) & (height <= max_pixels) & (width <= max_pixels)
    allowed = known & (tf.minimum(height, max_pixels) * tf.minimum(width, max_pixels) <= max_pixels)
    message = (
        f"Expected a JPEG, PNG, GIF, BMP or WebP picture of at most {max_pixels} pixels. Received height and width:"
    )
    with tf.control_dependencies([tf.debugging.Assert(allowed, [message, height, width])]):
        return tf.identity(contents)


def map_valid(function, elements: tf.Tensor, shape: tuple[int, ...]) -> tuple[tf.Tensor, tf.Tensor]:
    """Applies a function to every element on the processor, in parallel, and leaves zeros where it fails.

    A `tf.data` pipeline inside the graph is what makes this possible: an operation that fails takes its whole graph
    with it, but `ignore_errors` drops only the element. Each one carries its number, which tells where the others
    belong.

    Args:
        function: Takes one element, returns a float32 tensor of the static `shape`.
        elements: `[B, ...]`.
        shape: Static shape of a result.

    Returns:
        The results, float32 `[B, *shape]`, and which are valid, bool `[B]`.
    """
    with tf.device("/cpu:0"):  # strings and variants cannot live on an accelerator
        count = tf.shape(elements, out_type=tf.int64)[0]

        def numbered(index, element):
            return index, tf.ensure_shape(function(element), shape)

        results = tf.data.Dataset.from_tensor_slices(elements).enumerate()
        results = results.map(numbered, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False).ignore_errors()
        # One extra element, cut off below, because a batch of nothing cannot be taken out of the pipeline.
        extra = tf.data.Dataset.from_tensors((count, tf.zeros(shape)))
        indices, values = extra.concatenate(results).batch(count + 1).get_single_element()
        full_shape = tf.concat([[count + 1], tf.constant(shape, tf.int64)], axis=0)
        values = tf.scatter_nd(indices[:, None], values, full_shape)[:count]
        valid = tf.scatter_nd(indices[:, None], tf.ones_like(indices), [count + 1])[:count] > 0
        return tf.ensure_shape(values, (None, *shape)), tf.ensure_shape(valid, (None,))
