"""The operations that preprocessing strings are made of: decoding, resizing, cropping, values, labels.

Where big_vision has an operation of the same name, its arguments and numbers are the same. Augmentations that change
colours are in `augment` and `randaugment`.
"""

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_vit import _checks
from keras_vit.data import images
from keras_vit.data.parse import EXAMPLE, IMAGE, VALUE, Op

METHODS = (
    "bilinear",
    "area",
    "bicubic",
    "nearest",
    "lanczos3",
    "lanczos5",
    "gaussian",
    "mitchellcubic",
)


def decode(
    channels: int = 3, precise: bool = False, exif: bool = True, max_pixels: int = images.MAX_PIXELS
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Decodes a picture; passes an array on, with the wanted number of channels.

    Args:
        channels: 3 or 1. Grey becomes RGB and the reverse.
        precise: decode JPEG as PIL and OpenCV do, with the accurate integer transform.
        exif: turn photographs upright as the camera noted; big_vision does not (`exif=False`).
        max_pixels: refuse larger pictures.
    """
    _checks.choice("channels", channels, (3, 1))

    def apply(image):
        if image.dtype == tf.string:
            return images.decode(image, channels, precise, exif, max_pixels)
        if image.shape[-1] == channels:
            return image
        if image.shape[-1] not in (1, 3):
            raise ValueError(f"decode(channels={channels}) needs images of 1 or 3 channels. Received: {image.shape}.")
        return tf.image.grayscale_to_rgb(image) if channels == 3 else tf.image.rgb_to_grayscale(image)

    return apply


def decode_jpeg_and_inception_crop(
    size: int | Sequence[int] | None = None,
    area_min: float = 5,
    area_max: float = 100,
    ratio_min: float = 0.75,
    ratio_max: float = 1.33,
    method: str = "bilinear",
    antialias: bool = False,
    cast: bool = True,
    exif: bool = True,
    max_pixels: int = images.MAX_PIXELS,
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """`decode|inception_crop(size)` that decodes only the crop of a JPEG; other formats are decoded whole."""
    resized = resize(size, method, antialias, cast) if size else lambda image: image
    window_of = _window(area_min, area_max, ratio_min, ratio_max)

    def apply(image, seed):
        if image.dtype == tf.string:
            return resized(images.decode_and_crop(image, lambda shape: window_of(shape, seed), exif, max_pixels))
        return resized(_slice(decode()(image), lambda shape: window_of(shape, seed)))

    return apply


def inception_crop(
    size: int | Sequence[int] | None = None,
    area_min: float = 5,
    area_max: float = 100,
    ratio_min: float = 0.75,
    ratio_max: float = 1.33,
    method: str = "bilinear",
    antialias: bool = False,
    cast: bool = True,
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Crops at random, with random area and aspect ratio, and resizes (https://arxiv.org/abs/1409.4842).

    Args:
        size: side of the result, or (height, width); `None` leaves the crop as it is.
        area_min: least area of the crop, in percent of the picture.
        area_max: largest area of the crop.
        ratio_min: least width over height of the crop.
        ratio_max: largest width over height of the crop.
        method: see `resize`.
        antialias: see `resize`.
        cast: see `resize`.
    """
    resized = resize(size, method, antialias, cast) if size else lambda image: image
    window_of = _window(area_min, area_max, ratio_min, ratio_max)
    return lambda image, seed: resized(_slice(image, lambda shape: window_of(shape, seed)))


def _window(area_min: float, area_max: float, ratio_min: float, ratio_max: float):
    if not 0 < area_min <= area_max <= 100:
        raise ValueError(f"0 < area_min <= area_max <= 100 is expected, in percent. Received: {area_min}, {area_max}.")
    if not 0 < ratio_min <= ratio_max:
        raise ValueError(f"0 < ratio_min <= ratio_max is expected. Received: {ratio_min}, {ratio_max}.")

    def window_of(shape, seed):
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            tf.zeros([0, 0, 4], tf.float32),
            seed,
            min_object_covered=0.0,
            aspect_ratio_range=(ratio_min, ratio_max),
            area_range=(area_min / 100, area_max / 100),
            use_image_if_no_bounding_boxes=True,
        )
        return tf.concat([begin[:2], size[:2]], axis=0)

    return window_of


def _slice(image: tf.Tensor, window_of) -> tf.Tensor:
    y, x, height, width = tf.unstack(window_of(tf.shape(image)))
    crop = image[y : y + height, x : x + width]
    crop.set_shape([None, None, image.shape[-1]])
    return crop


def resize(
    size: int | Sequence[int], method: str = "bilinear", antialias: bool = False, cast: bool = True
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Resizes to `size`, not keeping the aspect ratio.

    Args:
        size: side of the result, or (height, width).
        method: one of `tf.image.ResizeMethod`.
        antialias: whether to smooth when downsampling.
        cast: go back to the type of the input, cutting off the fraction, as big_vision does. `False` keeps the
            interpolated float values, as the pipeline of the ViT paper does.
    """
    size = _checks.size_pair("size", size)
    _checks.choice("method", method, METHODS)
    return lambda image: _resize(image, size, method, antialias, cast)


def resize_small(
    smaller_size: int, method: str = "area", antialias: bool = False, cast: bool = True
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Resizes so that the smaller side is `smaller_size`, keeping the aspect ratio. Arguments as in `resize`."""
    return _resize_side(tf.minimum, _checks.positive_int("smaller_size", smaller_size), method, antialias, cast)


def resize_long(
    longer_size: int, method: str = "area", antialias: bool = True, cast: bool = True
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Resizes so that the longer side is `longer_size`, keeping the aspect ratio. Arguments as in `resize`."""
    return _resize_side(tf.maximum, _checks.positive_int("longer_size", longer_size), method, antialias, cast)


def _resize_side(side, target: int, method: str, antialias: bool, cast: bool):
    _checks.choice("method", method, METHODS)

    def apply(image):
        height, width = tf.shape(image)[0], tf.shape(image)[1]
        factor = tf.cast(target, tf.float32) / tf.cast(side(height, width), tf.float32)
        sides = tf.round(tf.cast(tf.stack([height, width]), tf.float32) * factor)
        # A strip of 1 x 1000 pixels would lose its short side entirely.
        return _resize(image, tf.maximum(tf.cast(sides, tf.int32), 1), method, antialias, cast)

    return apply


def _resize(image: tf.Tensor, size, method: str, antialias: bool, cast: bool) -> tf.Tensor:
    dtype = image.dtype
    if method == "bilinear" and dtype == tf.uint8:
        image = tf.cast(image, tf.float32)  # equal values, sooner: only floats are taken as vectors
    image = tf.image.resize(image, size, method=method, antialias=antialias)
    if not cast or image.dtype == dtype:
        return image
    if method not in ("bilinear", "area", "nearest"):  # these stay between the values of the input
        image = tf.clip_by_value(image, dtype.min, dtype.max)
    return tf.cast(image, dtype)


def central_crop(crop_size: int | Sequence[int] | None = None) -> Callable[[tf.Tensor], tf.Tensor]:
    """Cuts out the middle: `crop_size` (a side or (height, width)), or the largest square."""
    size = _checks.size_pair("crop_size", crop_size) if crop_size else None

    def apply(image):
        height, width = tf.shape(image)[0], tf.shape(image)[1]
        h, w = size or (tf.minimum(height, width),) * 2
        return tf.image.crop_to_bounding_box(image, (height - h) // 2, (width - w) // 2, h, w)

    return apply


def random_crop(crop_size: int | Sequence[int]) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Cuts out a part of `crop_size` (a side or (height, width)) at a random place."""
    size = _checks.size_pair("crop_size", crop_size)
    return lambda image, seed: tf.image.stateless_random_crop(image, (*size, image.shape[-1]), seed)


def pad(padding: int | Sequence[int], mode: str = "constant", value: int = 0) -> Callable[[tf.Tensor], tf.Tensor]:
    """Adds a border, e.g. `pad(4)|random_crop(32)` for CIFAR.

    Args:
        padding: pixels on each side, or (above and below, left and right).
        mode: `"constant"`, `"reflect"` or `"symmetric"`.
        value: of the border where it is constant.
    """
    vertical, horizontal = (padding, padding) if isinstance(padding, int) else tuple(padding)
    if min(vertical, horizontal) < 0:
        raise ValueError(f"`padding` must not be negative. Received: {padding!r}.")
    _checks.choice("mode", mode, ("constant", "reflect", "symmetric"))
    borders = [[vertical, vertical], [horizontal, horizontal], [0, 0]]
    return lambda image: tf.pad(image, borders, mode.upper(), constant_values=tf.cast(value, image.dtype))


def flip_lr(probability: float = 0.5) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Mirrors left and right, with a probability of one half."""
    if not 0 <= probability <= 1:
        raise ValueError(f"`probability` must be in [0, 1]. Received: {probability!r}.")

    def apply(image, seed):
        flip = tf.random.stateless_uniform([], seed) < probability
        return tf.cond(flip, lambda: tf.reverse(image, [1]), lambda: image)

    return apply


def grayscale_to_rgb() -> Callable[[tf.Tensor], tf.Tensor]:
    """Repeats the one channel of a grey image three times; RGB passes."""
    return lambda image: image if image.shape[-1] == 3 else tf.image.grayscale_to_rgb(image)


def as_float32(image):
    """Returns an image as float32: in the training step as a tensor of Keras' backend, elsewhere as one of TensorFlow.

    The operations on values run in both places.
    """
    return keras.ops.cast(image, "float32") if keras.ops.is_tensor(image) else tf.cast(image, tf.float32)


def value_range(
    vmin: float = -1, vmax: float = 1, in_min: float = 0, in_max: float = 255.0, clip_values: bool = False
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Maps values from [in_min, in_max] to [vmin, vmax], as float32."""

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
    """Maps 0..255 to 0..1, subtracts `mean` and divides by `std`, as float32. The defaults are those of ImageNet."""
    mean, std = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    return lambda image: (as_float32(image) / 255.0 - mean) / std


def vgg_value_range(
    mean: Sequence[float] = (0.485 * 255, 0.456 * 255, 0.406 * 255),
    std: Sequence[float] = (0.229 * 255, 0.224 * 255, 0.225 * 255),
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Subtracts `mean` and divides by `std`, both in 0..255, as float32: big_vision's way to write `value_norm`."""
    mean, std = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    return lambda image: (as_float32(image) - mean) / std


def onehot(
    depth: int, key: str = "label", key_result: str | None = None, on: float = 1.0, off: float = 0.0
) -> Callable[[dict], dict]:
    """Turns class numbers into a float32 vector of length `depth`; several labels are merged into one vector.

    Args:
        depth: number of classes.
        key: where the label is. `"labels"`, as big_vision calls it, means `"label"`.
        key_result: where the result goes; the same place when `None`.
        on: value of the classes that are meant.
        off: value of the others.
    """
    _checks.positive_int("depth", depth)

    def apply(example):
        label = example[_label_key(key)]
        if label.dtype.is_floating:  # already a vector
            return {**example, _label_key(key_result or key): label}
        vector = tf.one_hot(label, depth, on_value=on, off_value=off)
        if vector.shape.rank == 2:
            vector = tf.reduce_max(vector, axis=0) if on > off else tf.reduce_min(vector, axis=0)
        return {**example, _label_key(key_result or key): vector}

    return apply


def keep(*keys: str) -> Callable[[dict], dict]:
    """Drops all features but the named ones."""
    wanted = {_label_key(key) for key in keys}
    return lambda example: {key: value for key, value in example.items() if key in wanted}


def _label_key(key: str) -> str:
    return "label" if key == "labels" else key


OPS = {
    op.name: op
    for op in (
        Op("decode", decode),
        Op("decode_jpeg_and_inception_crop", decode_jpeg_and_inception_crop, IMAGE, random=True),
        Op("inception_crop", inception_crop, IMAGE, random=True),
        Op("resize", resize),
        Op("resize_small", resize_small),
        Op("resize_long", resize_long),
        Op("central_crop", central_crop),
        Op("random_crop", random_crop, IMAGE, random=True),
        Op("pad", pad),
        Op("flip_lr", flip_lr, IMAGE, random=True),
        Op("grayscale_to_rgb", grayscale_to_rgb),
        Op("value_range", value_range, VALUE),
        Op("value_norm", value_norm, VALUE),
        Op("vgg_value_range", vgg_value_range, VALUE),
        Op("onehot", onehot, EXAMPLE),
        Op("keep", keep, EXAMPLE),
    )
}
