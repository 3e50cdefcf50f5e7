"""Masks in the exported graph, at the sizes of their images: as PNG files, and as run lengths."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def resized(mask: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Return masks `[..., H, W]` at another (height, width), as `inference.masks.resized` does."""
    for axis in (-2, -1):
        new, old = tf.cast(size[axis], tf.int64), tf.shape(mask, tf.int64)[axis]
        mask = tf.gather(mask, (2 * tf.range(new) + 1) * old // (2 * new), axis=axis)
    return mask


def to_png(mask: tf.Tensor) -> tf.Tensor:
    """Return a mask `[h, w]` as a PNG file of gray pixels: of 8 bits, or of 16 for int32."""
    return tf.io.encode_png(tf.cast(mask, tf.uint8 if mask.dtype == tf.uint8 else tf.uint16)[..., None])


def to_runs(mask: tf.Tensor) -> tf.Tensor:
    """Return the run lengths of a mask `[h, w]`, row by row: pairs of class and number of pixels, int32 `[R, 2]`."""
    flat = tf.cast(tf.reshape(mask, [-1]), tf.int32)
    starts = tf.cast(tf.where(tf.concat([[True], flat[1:] != flat[:-1]], axis=0))[:, 0], tf.int32)
    counts = tf.concat([starts[1:], [tf.size(flat)]], axis=0) - starts
    return tf.stack([tf.gather(flat, starts), counts], axis=-1)


def of_sizes(function: Callable, masks: tf.Tensor, sizes: tf.Tensor, spec: tf.TypeSpec) -> Any:
    """Apply a function to each of the masks `[B, H, W]` at its size, `[B, 2]`; a size of nothing counts as a pixel."""
    with tf.device("/cpu:0"):
        sizes = tf.maximum(sizes, 1)
        return tf.map_fn(lambda pair: function(resized(*pair)), (masks, sizes), fn_output_signature=spec)
