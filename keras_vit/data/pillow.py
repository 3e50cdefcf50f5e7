"""Resizing that reproduces the pixels of Pillow, which the image processors of transformers and timm use.

When reducing an image, Pillow stretches its filter. Pillow rounds the weights to 22 bits, and the pixels to 8 bits
after each axis. This module does the same with TensorFlow operations, so that exported models see the same pixels.

References:
    - [Pillow, Resample.c](https://github.com/python-pillow/Pillow/blob/main/src/libImaging/Resample.c)
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

_BITS = 22  # fractional bits of the weights: sums of weighted pixels fit into 32 bits


def _bilinear(x: tf.Tensor) -> tf.Tensor:
    return tf.maximum(1.0 - tf.abs(x), 0.0)


def _bicubic(x: tf.Tensor) -> tf.Tensor:
    x, a = tf.abs(x), -0.5
    near, far = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0, (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return tf.where(x < 1.0, near, tf.where(x < 2.0, far, tf.zeros_like(x)))


def _lanczos(x: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.abs(x) < 3.0, _sinc(x) * _sinc(x / 3.0), tf.zeros_like(x))


def _sinc(x: tf.Tensor) -> tf.Tensor:
    x = x * np.pi
    return tf.where(x == 0.0, tf.ones_like(x), tf.math.divide_no_nan(tf.sin(x), x))


# Method -> filter, and its radius in pixels of the result.
FILTERS: dict[str, tuple[Callable[[tf.Tensor], tf.Tensor], float]] = {
    "pillow_bilinear": (_bilinear, 1.0),
    "pillow_bicubic": (_bicubic, 2.0),
    "pillow_lanczos": (_lanczos, 3.0),
}


def resize(image: tf.Tensor, size: tf.Tensor, method: str) -> tf.Tensor:
    """Resize an image, uint8 `[H, W, C]`, to a size `(h, w)`: uint8 `[h, w, C]`."""
    if image.dtype != tf.uint8:
        raise ValueError(f"method={method!r} requires uint8 images. Received: {image.dtype.name}.")
    channels = image.shape[-1]
    old_height, old_width = tf.shape(image)[0], tf.shape(image)[1]
    height, width = (tf.cast(side, tf.int32) for side in tf.unstack(size))
    # Pillow resizes the width first. Since version 13, Pillow resizes the height first if it is reduced much more.
    is_first = (height < old_height) & (old_height - height > 2 * (old_width - width))
    image = _resize_rows(image, tf.where(is_first, height, old_height), method)
    image = tf.transpose(image, [1, 0, 2])  # [W, H, C]: columns are contiguous
    image = _resize_rows(image, width, method)  # [w, H, C]
    image = _resize_rows(tf.transpose(image, [1, 0, 2]), height, method)  # [h, w, C]
    static = tf.get_static_value(size)
    image.set_shape([None, None, channels] if static is None else [*static, channels])
    return image


def _resize_rows(image: tf.Tensor, size: tf.Tensor, method: str) -> tf.Tensor:
    """Resize the first axis of an image, `[N, M, C]`, to `[size, M, C]`."""
    return tf.cond(tf.shape(image)[0] == size, lambda: image, lambda: _weighted_rows(image, size, method))


# A graph, also in eager execution, in which a loop over the taps takes six times as long.
@tf.function(autograph=False, reduce_retracing=True)
def _weighted_rows(image: tf.Tensor, size: tf.Tensor, method: str) -> tf.Tensor:
    first, weights = _weights(tf.shape(image)[0], size, *FILTERS[method])  # [size], [taps, size]
    last = tf.shape(image)[0] - 1

    def add(tap, total):
        rows = tf.gather(image, tf.minimum(first + tap, last))  # [size, M, C]; weights after the last row are 0
        return tap + 1, total + weights[tap][:, None, None] * tf.cast(rows, tf.int32)

    total = tf.fill(tf.concat([[size], tf.shape(image)[1:]], 0), 1 << (_BITS - 1))  # one half, to round to nearest
    taps = tf.shape(weights)[0]
    _, total = tf.while_loop(lambda tap, _: tap < taps, add, (0, total))
    total = tf.bitwise.right_shift(total, _BITS)
    return tf.cast(tf.clip_by_value(total, 0, 255), tf.uint8)


def _weights(old: tf.Tensor, new: tf.Tensor, function: Callable, reach: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the first input row of each output row, `[new]`, and the weights of that row and the following rows."""
    scale = tf.cast(old, tf.float64) / tf.cast(new, tf.float64)
    stretch = tf.maximum(scale, 1.0)
    center = (tf.range(tf.cast(new, tf.float64), dtype=tf.float64) + 0.5) * scale  # [new]
    # Like Pillow, truncate toward zero.
    first = tf.maximum(tf.cast(center - reach * stretch + 0.5, tf.int32), 0)
    end = tf.minimum(tf.cast(center + reach * stretch + 0.5, tf.int32), old)
    taps = tf.range(tf.reduce_max(end - first))[:, None]  # [taps, 1]
    distance = tf.cast(first + taps, tf.float64) - center + 0.5  # [taps, new]
    weights = tf.where(taps < end - first, function(distance * (1.0 / stretch)), tf.zeros_like(distance))
    weights = weights * (1.0 / tf.reduce_sum(weights, 0)) * (1 << _BITS)
    return first, tf.cast(weights + 0.5 * tf.sign(weights), tf.int32)
