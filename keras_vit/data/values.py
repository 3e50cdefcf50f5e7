"""Operations of preprocessing strings on the values of images. They run on the device, in any backend of Keras."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.data.parse import VALUE, Op


def as_float32(image: Any) -> Any:
    """Return an image as float32: a tensor of Keras' backend in the training step, of TensorFlow elsewhere."""
    return keras.ops.cast(image, "float32") if keras.ops.is_tensor(image) else tf.cast(image, tf.float32)


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


def value_norm(
    mean: Sequence[float] = (0.485, 0.456, 0.406), std: Sequence[float] = (0.229, 0.224, 0.225)
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Map 0..255 to 0..1, subtract `mean` and divide by `std`, as float32. The defaults are those of ImageNet."""
    center, scale = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    return lambda image: (as_float32(image) / 255.0 - center) / scale


def vgg_value_range(
    mean: Sequence[float] = (0.485 * 255, 0.456 * 255, 0.406 * 255),
    std: Sequence[float] = (0.229 * 255, 0.224 * 255, 0.225 * 255),
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Subtract `mean` and divide by `std`, both in 0..255, as float32. This is `value_norm` as big_vision writes it."""
    center, scale = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    return lambda image: (as_float32(image) - center) / scale


OPS = {
    op.name: op
    for op in (
        Op("value_range", value_range, VALUE),
        Op("value_norm", value_norm, VALUE),
        Op("vgg_value_range", vgg_value_range, VALUE),
    )
}
