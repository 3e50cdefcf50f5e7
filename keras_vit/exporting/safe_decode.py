"""Decoding inside the exported graph: an image that is unreadable or too large does not fail its batch."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

MAX_PIXELS = 50_000_000  # of an image, see `keras_vit.data.headers.check`


def map_valid(function: Callable[[tf.Tensor], Any], elements: tf.Tensor, specs: Any) -> tuple[Any, tf.Tensor]:
    """Apply a function to every element on the CPU, in parallel; return the results, and which are valid, `[B]`.

    `specs` describes the result of the function, a tensor or a structure of tensors; the results have `B` in front.

    The function runs in a `tf.data` pipeline inside the graph. A failed operation ends its whole graph, but
    `ignore_errors` drops only the element, whose results are zeros. Elements carry their number, which gives the order.
    """
    with tf.device("/cpu:0"):  # strings and variants cannot live on an accelerator
        count = tf.shape(elements, out_type=tf.int64)[0]

        def numbered(index, element):
            shaped = tf.nest.map_structure(
                lambda value, spec: tf.ensure_shape(value, spec.shape), function(element), specs
            )
            return index, shaped

        results = tf.data.Dataset.from_tensor_slices(elements).enumerate()
        results = results.map(numbered, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False).ignore_errors()
        # One extra element, cut off below: an empty batch cannot be taken out of the pipeline.
        zeros = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)
        extra = tf.data.Dataset.from_tensors((count, zeros))
        indices, found = extra.concatenate(results).batch(count + 1).get_single_element()

        def in_order(values, spec):
            full_shape = tf.concat([[count + 1], tf.constant(spec.shape.as_list(), tf.int64)], axis=0)
            return tf.ensure_shape(tf.scatter_nd(indices[:, None], values, full_shape)[:count], (None, *spec.shape))

        valid = tf.scatter_nd(indices[:, None], tf.ones_like(indices), [count + 1])[:count] > 0
        return tf.nest.map_structure(in_order, found, specs), tf.ensure_shape(valid, (None,))
