"""Color jitter and random erasing."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_vit.data.parse import operation
from keras_vit.util import checks


@operation(random=True)
def color_jitter(
    brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0, hue: float = 0.0
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Change brightness, contrast, saturation and hue at random, in this order.

    As in torchvision's `ColorJitter`, the factors are drawn from [max(0, 1 - value), 1 + value]. The hue is rotated by
    a fraction of the color circle that is drawn from [-hue, hue]; `hue` is at most 0.5. Torchvision also shuffles the
    order of the four operations.
    """
    ranges = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
    for name, value in ranges.items():
        if value < 0 or (name == "hue" and value > 0.5):
            raise ValueError(
                f"`{name}` must be at least 0{' and at most 0.5' if name == 'hue' else ''}. Received: {value}."
            )

    def apply(image, seed):
        _need_uint8(image, "color_jitter")
        low = [max(0.0, 1.0 - value) for value in (brightness, contrast, saturation)] + [-hue]
        high = [1.0 + value for value in (brightness, contrast, saturation)] + [hue]
        factors = tf.unstack(tf.random.stateless_uniform([4], seed) * tf.subtract(high, low) + low)
        result = tf.cast(image, tf.float32)
        if brightness:
            result = tf.clip_by_value(result * factors[0], 0.0, 255.0)
        if contrast:
            mean = tf.reduce_mean(_gray(result))
            result = tf.clip_by_value(mean + (result - mean) * factors[1], 0.0, 255.0)
        if image.shape[-1] == 3 and saturation:
            gray = _gray(result)
            result = tf.clip_by_value(gray + (result - gray) * factors[2], 0.0, 255.0)
        if image.shape[-1] == 3 and hue:
            result = tf.image.adjust_hue(result / 255.0, factors[3]) * 255.0
        return tf.cast(tf.clip_by_value(tf.round(result), 0.0, 255.0), tf.uint8)

    return apply


@operation(random=True)
def random_erasing(
    probability: float = 0.25,
    area_min: float = 2,
    area_max: float = 100 / 3,
    ratio_min: float = 0.3,
    ratio_max: float = 1 / 0.3,
    value: int | str = 128,
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Cover a random rectangle of the image.

    The limits of the area are in percent of the image. The ratio is height over width. `value` is the color of the
    rectangle, 0..255 or `"noise"`. `value_range(-1, 1)` maps the default, 128, to about 0.

    References:
        https://arxiv.org/abs/1708.04896
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"`probability` must be in [0, 1]. Received: {probability!r}.")
    if not 0 < area_min <= area_max <= 100 or not 0 < ratio_min <= ratio_max:
        raise ValueError(
            "0 < area_min <= area_max <= 100 and 0 < ratio_min <= ratio_max are expected. Received: "
            f"area_min={area_min}, area_max={area_max}, ratio_min={ratio_min}, ratio_max={ratio_max}."
        )
    if isinstance(value, str):
        checks.choice("value", value, ("noise",))

    def erase(image, draws, seed):
        height, width = (tf.cast(side, tf.float32) for side in tf.unstack(tf.shape(image)[:2]))
        area = height * width * (area_min + draws[1] * (area_max - area_min)) / 100
        ratio = tf.exp(math.log(ratio_min) + draws[2] * (math.log(ratio_max) - math.log(ratio_min)))
        h = tf.clip_by_value(tf.round(tf.sqrt(area * ratio)), 1.0, height)
        w = tf.clip_by_value(tf.round(tf.sqrt(area / ratio)), 1.0, width)
        top, left = tf.floor(draws[3] * (height - h + 1)), tf.floor(draws[4] * (width - w + 1))
        if value == "noise":
            filling = tf.random.stateless_uniform(tf.shape(image), seed, 0, 256, tf.int32)
        else:
            filling = value
        return cover(image, top, left, h, w, filling)

    def apply(image, seed):
        draws = tf.random.stateless_uniform([5], seed)
        return tf.cond(draws[0] < probability, lambda: erase(image, draws, seed + 1), lambda: image)

    return apply


def cover(
    image: tf.Tensor, top: tf.Tensor, left: tf.Tensor, height: tf.Tensor, width: tf.Tensor, filling: Any
) -> tf.Tensor:
    """Fill a rectangle of `image` `[H, W, C]` with `filling`. The rectangle may extend beyond the image."""
    rows = tf.range(tf.shape(image)[0], dtype=top.dtype)
    columns = tf.range(tf.shape(image)[1], dtype=left.dtype)
    columns = tf.repeat(columns, image.shape[-1])  # arithmetic on long rows is faster than selecting pixels
    inside = ((rows >= top) & (rows < top + height))[:, None] & ((columns >= left) & (columns < left + width))[None, :]
    inside = tf.reshape(tf.cast(inside, image.dtype), tf.shape(image))
    return image * (1 - inside) + tf.cast(filling, image.dtype) * inside


def _gray(image: tf.Tensor) -> tf.Tensor:
    """Return the perceived brightness, float `[H, W, 1]`."""
    return image if image.shape[-1] == 1 else tf.tensordot(image, [[0.2989], [0.587], [0.114]], 1)


def _need_uint8(image: tf.Tensor, name: str) -> None:
    if image.dtype != tf.uint8:
        raise ValueError(f"{name!r} needs uint8 images: put it before value operations, and do not use cast=False.")
