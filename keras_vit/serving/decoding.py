"""Encoded pictures inside the exported graph: one that cannot be read or is too large does not fail the others."""

import tensorflow as tf

from keras_vit.data import headers

MAX_PIXELS = 50_000_000


def check_size(contents: tf.Tensor, max_pixels: int = MAX_PIXELS) -> tf.Tensor:
    """Pass an encoded image on, or fail before it is decoded.

    Args:
        contents: Scalar string.
        max_pixels: Largest allowed number of pixels, see `keras_vit.data.headers.pixel_count`.

    Returns:
        `contents`.
    """
    return headers.check(contents, max_pixels, known_only=True)


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
