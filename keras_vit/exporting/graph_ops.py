"""Operations in the exported graph: decoding that does not fail a batch, and masks as PNG files or run lengths."""

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


def resized(mask: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Resize masks `[..., H, W]` to a (height, width), as `inference.masks.resized` does."""
    for axis in (-2, -1):
        new, old = tf.cast(size[axis], tf.int64), tf.shape(mask, tf.int64)[axis]
        mask = tf.gather(mask, (2 * tf.range(new) + 1) * old // (2 * new), axis=axis)
    return mask


def to_png(mask: tf.Tensor) -> tf.Tensor:
    """Encode a mask `[h, w]` as a grayscale PNG file with 8 bits per pixel, or 16 bits for int32."""
    return tf.io.encode_png(tf.cast(mask, tf.uint8 if mask.dtype == tf.uint8 else tf.uint16)[..., None])


def to_runs(mask: tf.Tensor) -> tf.Tensor:
    """Encode a mask `[h, w]`, row by row, as pairs of class and number of pixels, int32 `[R, 2]`."""
    flat = tf.cast(tf.reshape(mask, [-1]), tf.int32)
    starts = tf.cast(tf.where(tf.concat([[True], flat[1:] != flat[:-1]], axis=0))[:, 0], tf.int32)
    counts = tf.concat([starts[1:], [tf.size(flat)]], axis=0) - starts
    return tf.stack([tf.gather(flat, starts), counts], axis=-1)


def of_sizes(function: Callable, masks: tf.Tensor, sizes: tf.Tensor, spec: tf.TypeSpec) -> Any:
    """Resize each of the masks `[B, H, W]` to its size, `[B, 2]`, and apply a function. A size of 0 counts as 1."""
    with tf.device("/cpu:0"):
        sizes = tf.maximum(sizes, 1)
        return tf.map_fn(lambda pair: function(resized(*pair)), (masks, sizes), fn_output_signature=spec)
