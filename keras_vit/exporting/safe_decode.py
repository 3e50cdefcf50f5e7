"""Decoding inside the exported graph: an image that is unreadable or too large does not fail its batch."""

from collections.abc import Callable

import tensorflow as tf

MAX_PIXELS = 50_000_000  # of an image, see `keras_vit.data.headers.check`


def map_valid(
    function: Callable[[tf.Tensor], tf.Tensor], elements: tf.Tensor, shape: tuple[int, ...]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Apply a function to every element on the CPU, in parallel; return float32 `[B, *shape]`, and which are valid.

    The function runs in a `tf.data` pipeline inside the graph. A failed operation ends its whole graph, but
    `ignore_errors` drops only the element, whose results are zeros. Elements carry their number, which gives the order.
    """
    with tf.device("/cpu:0"):  # strings and variants cannot live on an accelerator
        count = tf.shape(elements, out_type=tf.int64)[0]

        def numbered(index, element):
            return index, tf.ensure_shape(function(element), shape)

        results = tf.data.Dataset.from_tensor_slices(elements).enumerate()
        results = results.map(numbered, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False).ignore_errors()
        # One extra element, cut off below: an empty batch cannot be taken out of the pipeline.
        extra = tf.data.Dataset.from_tensors((count, tf.zeros(shape)))
        indices, values = extra.concatenate(results).batch(count + 1).get_single_element()
        full_shape = tf.concat([[count + 1], tf.constant(shape, tf.int64)], axis=0)
        values = tf.scatter_nd(indices[:, None], values, full_shape)[:count]
        valid = tf.scatter_nd(indices[:, None], tf.ones_like(indices), [count + 1])[:count] > 0
        return tf.ensure_shape(values, (None, *shape)), tf.ensure_shape(valid, (None,))
