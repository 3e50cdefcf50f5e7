"""Masks in the exported graph, resized to their images and encoded as PNG files or run lengths."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


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
