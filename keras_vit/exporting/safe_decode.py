"""Decoding in the exported graph, where an unreadable or too large image does not fail its batch."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

MAX_PIXELS = 50_000_000  # per image, see `keras_vit.data.headers.check`


def map_valid(function: Callable[[tf.Tensor], Any], elements: tf.Tensor, specs: Any) -> tuple[Any, tf.Tensor]:
    """Apply a function to every element on the CPU, in parallel. Return the results and whether each is valid, `[B]`.

    `specs` describes the result for one element, a tensor or a structure of tensors. The returned tensors have an
    additional first dimension, `B`.

    A failed operation normally stops its whole graph. The function therefore runs in a `tf.data` pipeline inside the
    graph, where `ignore_errors` drops only the failed element. The results of a failed element are zeros. The index of
    each element is used to restore the order.
    """
    with tf.device("/cpu:0"):  # strings and variants cannot be placed on accelerators
        count = tf.shape(elements, out_type=tf.int64)[0]

        def numbered(index, element):
            shaped = tf.nest.map_structure(
                lambda value, spec: tf.ensure_shape(value, spec.shape), function(element), specs
            )
            return index, shaped

        results = tf.data.Dataset.from_tensor_slices(elements).enumerate()
        results = results.map(numbered, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False).ignore_errors()
        # Add an element, which is removed below, because the pipeline cannot return an empty batch.
        zeros = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)
        extra = tf.data.Dataset.from_tensors((count, zeros))
        indices, found = extra.concatenate(results).batch(count + 1).get_single_element()

        def in_order(values, spec):
            full_shape = tf.concat([[count + 1], tf.constant(spec.shape.as_list(), tf.int64)], axis=0)
            return tf.ensure_shape(tf.scatter_nd(indices[:, None], values, full_shape)[:count], (None, *spec.shape))

        valid = tf.scatter_nd(indices[:, None], tf.ones_like(indices), [count + 1])[:count] > 0
        return tf.nest.map_structure(in_order, found, specs), tf.ensure_shape(valid, (None,))
