"""Operations of preprocessing strings that resize images or scale their values.

Operations on values run on the device, on any backend of Keras.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.data import pillow
from keras_vit.data.parse import GEOMETRIC, IGNORED, VALUE, changed, operation
from keras_vit.util import checks

_TENSORFLOW = ("bilinear", "area", "bicubic", "nearest", "lanczos3", "lanczos5", "gaussian", "mitchellcubic")
METHODS = (*_TENSORFLOW, *pillow.FILTERS)
NEAREST = changed(method="nearest", antialias=False)


@operation(GEOMETRIC, mask=NEAREST)
def resize(
    size: int | Sequence[int], method: str = "bilinear", antialias: bool = False, cast: bool = True
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Resize to `size`, a side or (height, width), without keeping the aspect ratio.

    `cast=True` returns the type of the input and truncates fractions, as big_vision does. `cast=False` keeps the float
    values. `"pillow_bilinear"`, `"pillow_bicubic"` and `"pillow_lanczos"` reproduce the pixels of Pillow bit for bit.
    These three methods require uint8 images and always use antialiasing.
    """
    size = checks.size_pair("size", size)
    checks.choice("method", method, METHODS)
    return lambda image: _resize(image, size, method, antialias, cast)


@operation(GEOMETRIC, mask=NEAREST)
def resize_small(
    smaller_size: int, method: str = "area", antialias: bool = False, cast: bool = True
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Resize so that the smaller side is `smaller_size`, keeping the aspect ratio.

    The remaining arguments are the same as in `resize`. The other side is rounded to the nearest pixel. Pillow's
    methods round the other side down, as torchvision does.
    """
    return _resize_side(tf.minimum, checks.positive_int("smaller_size", smaller_size), method, antialias, cast)


@operation(GEOMETRIC, mask=NEAREST)
def resize_long(
    longer_size: int, method: str = "area", antialias: bool = True, cast: bool = True
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Resize so that the longer side is `longer_size`, keeping the aspect ratio. See `resize` for the arguments."""
    return _resize_side(tf.maximum, checks.positive_int("longer_size", longer_size), method, antialias, cast)


@operation(GEOMETRIC, random=True, mask=changed(method="nearest", value=IGNORED))
def scaled_crop(
    crop_size: int | Sequence[int],
    ratio_min: float = 0.5,
    ratio_max: float = 2.0,
    method: str = "bilinear",
    value: int = 0,
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Resize by a random ratio, then cut out `crop_size` at a random position.

    A ratio of 1 resizes the smaller side of the image to the smaller side of `crop_size`. An image that is smaller than
    the crop is padded with `value`.
    """
    size = checks.size_pair("crop_size", crop_size)
    checks.choice("method", method, METHODS)
    if not 0 < ratio_min <= ratio_max:
        raise ValueError(f"0 < ratio_min <= ratio_max is expected. Received: {(ratio_min, ratio_max)}.")

    def apply(image, seed):
        draws = tf.random.stateless_uniform([3], seed)
        old = tf.cast(tf.shape(image)[:2], tf.float32)
        factor = min(size) * (ratio_min + (ratio_max - ratio_min) * draws[0]) / tf.reduce_min(old)
        image = _resize(image, tf.maximum(tf.cast(tf.round(old * factor), tf.int32), 1), method, False, True)
        missing = tf.maximum(tf.constant(size) - tf.shape(image)[:2], 0)
        borders = [[0, missing[0]], [0, missing[1]], [0, 0]]
        image = tf.pad(image, borders, constant_values=tf.cast(value, image.dtype))
        margin = tf.cast(tf.shape(image)[:2] - size + 1, tf.float32)
        y, x = tf.unstack(tf.cast(tf.floor(draws[1:] * margin), tf.int32))
        return tf.ensure_shape(image[y : y + size[0], x : x + size[1]], [*size, image.shape[-1]])

    return apply


def _resize_side(side: Callable, target: int, method: str, antialias: bool, cast: bool):
    checks.choice("method", method, METHODS)

    def apply(image):
        height, width = tf.shape(image)[0], tf.shape(image)[1]
        if method in pillow.FILTERS:
            sides = tf.cast(tf.stack([height, width]), tf.int64) * target // tf.cast(side(height, width), tf.int64)
            return _resize(image, tf.maximum(tf.cast(sides, tf.int32), 1), method, antialias, cast)
        factor = tf.cast(target, tf.float32) / tf.cast(side(height, width), tf.float32)
        sides = tf.round(tf.cast(tf.stack([height, width]), tf.float32) * factor)
        # The short side of a strip of 1 x 1000 pixels would become 0.
        return _resize(image, tf.maximum(tf.cast(sides, tf.int32), 1), method, antialias, cast)

    return apply


def _resize(image: tf.Tensor, size, method: str, antialias: bool, cast: bool) -> tf.Tensor:
    dtype = image.dtype
    if method in pillow.FILTERS:
        return pillow.resize(image, size, method)
    if method == "bilinear" and dtype == tf.uint8:
        image = tf.cast(image, tf.float32)  # same result but faster: TensorFlow only vectorizes floats
    image = tf.image.resize(image, size, method=method, antialias=antialias)
    if not cast or image.dtype == dtype:
        return image
    if method not in ("bilinear", "area", "nearest"):  # only these methods never leave the range of the input
        image = tf.clip_by_value(image, dtype.min, dtype.max)
    return tf.cast(image, dtype)


def as_float32(image: Any) -> Any:
    """Cast an image to float32: tensors of Keras' backend with Keras, and all other values with TensorFlow."""
    return keras.ops.cast(image, "float32") if keras.ops.is_tensor(image) else tf.cast(image, tf.float32)


@operation(VALUE)
def value_range(
    vmin: float = -1, vmax: float = 1, in_min: float = 0, in_max: float = 255.0, clip_values: bool = False
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Map values from [in_min, in_max] to [vmin, vmax], as float32."""

    def apply(image):
        low, high = np.float32(in_min), np.float32(in_max)
        image = vmin + (as_float32(image) - low) / (high - low) * (vmax - vmin)
        if not clip_values:
            return image
        return keras.ops.clip(image, vmin, vmax) if keras.ops.is_tensor(image) else tf.clip_by_value(image, vmin, vmax)

    return apply


@operation(VALUE)
def value_norm(
    mean: Sequence[float] = (0.485, 0.456, 0.406), std: Sequence[float] = (0.229, 0.224, 0.225)
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Map 0..255 to 0..1, subtract `mean` and divide by `std`, as float32. The defaults are ImageNet's statistics."""
    center, scale = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    return lambda image: (as_float32(image) / 255.0 - center) / scale


@operation(VALUE)
def vgg_value_range(
    mean: Sequence[float] = (0.485 * 255, 0.456 * 255, 0.406 * 255),
    std: Sequence[float] = (0.229 * 255, 0.224 * 255, 0.225 * 255),
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Subtract `mean` and divide by `std`, both in 0..255, as float32: big_vision's notation for `value_norm`."""
    center, scale = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    return lambda image: (as_float32(image) - center) / scale
