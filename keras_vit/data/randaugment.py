"""RandAugment (https://arxiv.org/abs/1909.13719), in two modes.

`"reference"` equals the code of AutoAugment, EfficientNet and big_vision bit by bit, including its oddities.
All 16 operations are always applied at full strength. With L = magnitude / 10:

| operation | argument | oddity |
|---|---|---|
| Rotate, ShearX, ShearY | +-30 L degrees, +-0.3 L | |
| TranslateX, TranslateY | +-100 L pixels | independent of the image size |
| Color, Contrast, Brightness, Sharpness | factor 1.8 L + 0.1 | magnitude 0 gives 0.1: nearly black, or gray |
| Contrast | | relative to the gray value (number of pixels) / 256, not to the mean |
| Posterize | int(4 L) bits | larger magnitudes change less |
| Solarize | threshold int(256 L) | taken modulo 256: magnitudes 10 and 20 invert everything |
| SolarizeAdd | 110 L | |
| Cutout | square with sides of 2 * 40 L pixels | independent of the image size |
| AutoContrast, Equalize, Invert | | |

`"corrected"` has the same operations. At magnitude 0, operations with an argument return the
image unchanged, and their effect grows with the magnitude. Differences from `"reference"`:

- Factors are 1 +- 0.9 L, and Contrast is relative to the mean.
- Posterize keeps 8 - int(4 L) bits, and Solarize has the threshold 256 (1 - L).
- The lengths in the table are for images of 224 pixels, and are scaled with the size of the image.
- Moved images are interpolated.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_vit.data.augment import cover
from keras_vit.data.parse import GEOMETRIC, IGNORED, operation
from keras_vit.util import checks

REFERENCE, CORRECTED = "reference", "corrected"
NUM_OPERATIONS = 16
GRAY = 128  # value of empty pixels
MOVES = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")


def _of_masks(factory: Callable, arguments: dict) -> Callable:
    return _layers(arguments["num_layers"], _layer(arguments["magnitude"], arguments["mode"], masks=True))


@operation(GEOMETRIC, random=True, mask=_of_masks)
def randaug(num_layers: int = 2, magnitude: float = 10, mode: str = REFERENCE) -> Callable:
    """Apply `num_layers` randomly chosen augmentations in sequence. `magnitude` is meant to be at most 10."""
    checks.positive_int("num_layers", num_layers, minimum=0)
    checks.choice("mode", mode, (REFERENCE, CORRECTED))
    if not 0 <= magnitude <= 100:
        raise ValueError(f"`magnitude` must be in [0, 100]. Received: {magnitude!r}.")
    run = _layers(num_layers, _layer(magnitude, mode))

    def apply(image, seed):
        if image.dtype != tf.uint8 or image.shape[-1] != 3:
            raise ValueError(
                f"'randaug' needs uint8 images of 3 channels: put it after decode and before value operations. "
                f"Received: {image.dtype.name} {image.shape}."
            )
        return run(image, seed)

    return apply


@functools.cache  # tracing the operations takes half a second, so that all layers and data sets share one trace
def _layer(magnitude: float, mode: str, masks: bool = False) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]:
    """Return a function of an image or mask, the number of an operation, and two random numbers in [0, 1)."""
    operations = list(operations_of(magnitude, mode, masks).values())

    def apply(image, chosen, draws):
        return tf.switch_case(chosen, [functools.partial(run, image, draws) for run in operations])

    return tf.function(apply, autograph=False)


def _layers(num_layers: int, layer: Callable) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Return a function of an image or mask and a seed, which applies randomly chosen operations."""

    def apply(image, seed):
        chosen = tf.random.stateless_uniform([num_layers], seed, 0, NUM_OPERATIONS, tf.int32)
        shape = image.shape
        for index in range(num_layers):
            image = layer(image, chosen[index], tf.random.stateless_uniform([2], seed + 1 + index))
            image.set_shape(shape)
        return image

    return apply


def operations_of(
    magnitude: float, mode: str, masks: bool = False
) -> dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]]:
    """Return the 16 operations by name: functions of a uint8 image `[H, W, 3]` and two random numbers in [0, 1).

    With `masks=True`, the operations are functions of a mask `[H, W, 1]`. Operations that do not move pixels return the
    mask unchanged.
    """
    level = float(magnitude) / 10
    reference = mode == REFERENCE
    moved = functools.partial(_transform, nearest=reference or masks, fill=IGNORED if masks else GRAY)

    def factor(draws):
        return level * 1.8 + 0.1 if reference else 1.0 + _sign(draws[0]) * 0.9 * level

    def length(pixels, side):  # `pixels` is for images of 224 pixels
        return pixels * level if reference else pixels * level / 224 * tf.cast(side, tf.float32)

    def translate(image, draws, axis):
        distance = _sign(draws[0]) * length(100.0, tf.shape(image)[1 - axis])
        transform = [1.0, 0.0, distance * (axis == 0), 0.0, 1.0, distance * (axis == 1), 0.0, 0.0]
        return moved(image, transform)

    def cutout(image, draws):
        height, width = tf.shape(image)[0], tf.shape(image)[1]
        pad = int(level * 40) if reference else tf.cast(length(40.0, tf.minimum(height, width)), tf.int32)
        top = tf.cast(draws[0] * tf.cast(height, tf.float32), tf.int32) - pad
        left = tf.cast(draws[1] * tf.cast(width, tf.float32), tf.int32) - pad
        return cover(image, top, left, 2 * pad, 2 * pad, GRAY)

    bits = int(level * 4) if reference else 8 - int(level * 4)
    threshold = int(level * 256) % 256 if reference else 256 - min(int(level * 256), 256)
    operations = {
        "AutoContrast": lambda image, draws: autocontrast(image),
        "Equalize": lambda image, draws: equalize(image),
        "Invert": lambda image, draws: 255 - image,
        "Rotate": lambda image, draws: moved(image, _rotation(image, _sign(draws[0]) * (level * 30.0))),
        "Posterize": lambda image, draws: posterize(image, bits),
        "Solarize": lambda image, draws: solarize(image, threshold),
        "Color": lambda image, draws: color(image, factor(draws)),
        "Contrast": lambda image, draws: contrast(image, factor(draws), relative_to_mean=not reference),
        "Brightness": lambda image, draws: blend(tf.zeros_like(image), image, factor(draws)),
        "Sharpness": lambda image, draws: sharpness(image, factor(draws)),
        "ShearX": lambda image, draws: moved(
            image, [1.0, _sign(draws[0]) * (level * 0.3), 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
        ),
        "ShearY": lambda image, draws: moved(
            image, [1.0, 0.0, 0.0, _sign(draws[0]) * (level * 0.3), 1.0, 0.0, 0.0, 0.0]
        ),
        "TranslateX": lambda image, draws: translate(image, draws, axis=0),
        "TranslateY": lambda image, draws: translate(image, draws, axis=1),
        "Cutout": cutout,
        "SolarizeAdd": lambda image, draws: solarize_add(image, int(level * 110)),
    }
    if masks:
        return {name: operations[name] if name in MOVES else lambda mask, draws: mask for name in operations}
    return operations


def _sign(draw: tf.Tensor) -> tf.Tensor:
    return tf.where(draw >= 0.5, 1.0, -1.0)


def blend(degenerate: tf.Tensor, image: tf.Tensor, factor: Any) -> tf.Tensor:
    """Interpolate or extrapolate from `degenerate` (factor 0) to `image` (factor 1). Fractions are truncated."""
    if isinstance(factor, float) and factor in (0.0, 1.0):
        return image if factor else degenerate
    start = tf.cast(degenerate, tf.float32)
    mixed = start + factor * (tf.cast(image, tf.float32) - start)
    return tf.cast(tf.clip_by_value(mixed, 0.0, 255.0), tf.uint8)


def autocontrast(image: tf.Tensor) -> tf.Tensor:
    """Stretch each channel to 0..255. A constant channel is not changed."""
    rows = _rows(image)
    low, high = (
        tf.cast(reduce(tf.reshape(reduce(rows, 0), [-1, image.shape[-1]]), 0), tf.float32)
        for reduce in (tf.reduce_min, tf.reduce_max)
    )  # [C]
    scale = tf.where(high > low, 255.0 / tf.where(high > low, high - low, 1.0), 1.0)
    offset = tf.where(high > low, -low * scale, 0.0)
    stretched = tf.cast(rows, tf.float32) * _along_rows(image, scale) + _along_rows(image, offset)
    return tf.reshape(tf.cast(tf.clip_by_value(stretched, 0.0, 255.0), tf.uint8), tf.shape(image))


def equalize(image: tf.Tensor) -> tf.Tensor:
    """Flatten the histogram of each channel, as PIL does."""
    channels = image.shape[-1]
    values = tf.cast(_rows(image), tf.int32) + _along_rows(image, tf.range(channels) * 256)  # separate bins per channel
    counts = tf.reshape(tf.math.bincount(values, minlength=256 * channels), [channels, 256])
    last = 255 - tf.argmax(tf.cast(tf.reverse(counts, [1]) > 0, tf.int32), axis=1, output_type=tf.int32)
    step = (tf.reduce_sum(counts, axis=1) - tf.gather(counts, last, batch_dims=1)) // 255  # [C]
    step = step[:, None]
    above = tf.cumsum(counts, axis=1, exclusive=True)  # [C, 256]
    table = tf.clip_by_value((above + step // 2) // tf.maximum(step, 1), 0, 255)
    table = tf.concat([tf.zeros_like(table[:, :1]), table[:, 1:]], axis=1)
    table = tf.where(step > 0, table, tf.range(256))
    return tf.reshape(tf.gather(tf.cast(tf.reshape(table, [-1]), tf.uint8), values), tf.shape(image))


def posterize(image: tf.Tensor, bits: int) -> tf.Tensor:
    """Keep the upper `bits` bits, at least one."""
    shift = min(max(8 - bits, 0), 7)
    return tf.bitwise.bitwise_and(image, tf.constant((0xFF >> shift) << shift, tf.uint8))


def solarize(image: tf.Tensor, threshold: int) -> tf.Tensor:
    """Invert values of at least `threshold`, which is in 0..256."""
    if threshold > 255:
        return image
    return tf.bitwise.bitwise_xor(image, tf.cast(image >= threshold, tf.uint8) * 255)  # faster than `tf.where`


def solarize_add(image: tf.Tensor, addition: int) -> tf.Tensor:
    """Add `addition` to values below 128."""
    return image + tf.cast(image < 128, tf.uint8) * tf.minimum(255 - image, min(addition, 255))


def color(image: tf.Tensor, factor: Any) -> tf.Tensor:
    """Change the saturation."""
    return blend(tf.image.grayscale_to_rgb(tf.image.rgb_to_grayscale(image)), image, factor)


def contrast(image: tf.Tensor, factor: Any, relative_to_mean: bool = True) -> tf.Tensor:
    """Change the contrast relative to the mean brightness or, as in the reference, to (number of pixels) / 256."""
    if relative_to_mean:
        gray = tf.floor(tf.reduce_mean(tf.cast(tf.image.rgb_to_grayscale(image), tf.float32)) + 0.5)
    else:
        gray = tf.minimum(tf.floor(tf.cast(tf.shape(image)[0] * tf.shape(image)[1], tf.float32) / 256.0), 255.0)
    return blend(gray, image, factor)


def sharpness(image: tf.Tensor, factor: Any) -> tf.Tensor:
    """Blur or sharpen. The outermost pixels are not changed."""
    height, width, channels = tf.shape(image)[0], tf.shape(image)[1], image.shape[-1]
    kernel = tf.reshape([1.0, 1.0, 1.0, 1.0, 5.0, 1.0, 1.0, 1.0, 1.0], [3, 3, 1, 1]) / 13.0

    def smoothed():
        values = tf.cast(image, tf.float32)[None]
        smooth = tf.nn.depthwise_conv2d(values, tf.tile(kernel, [1, 1, channels, 1]), [1, 1, 1, 1], padding="VALID")[0]
        smooth = tf.cast(tf.clip_by_value(_rows(smooth), 0.0, 255.0), tf.uint8)
        borders = [[1, 1], [channels, channels]]
        inner = tf.pad(tf.ones_like(smooth), borders)
        return tf.reshape(tf.pad(smooth, borders) + _rows(image) * (1 - inner), tf.shape(image))

    has_inner_pixels = (height > 2) & (width > 2)
    return blend(tf.cond(has_inner_pixels, smoothed, lambda: image), image, factor)


def _rotation(image: tf.Tensor, degrees: tf.Tensor) -> list:
    """Return the transform that rotates about the center, counterclockwise for positive angles."""
    angle = degrees * (math.pi / 180.0)
    cos, sin = tf.cos(angle), tf.sin(angle)
    bottom, right = (tf.cast(side, tf.float32) - 1.0 for side in tf.unstack(tf.shape(image)[:2]))
    x_offset = (right - (cos * right - sin * bottom)) / 2.0
    y_offset = (bottom - (sin * right + cos * bottom)) / 2.0
    return [cos, -sin, x_offset, sin, cos, y_offset, 0.0, 0.0]


def _transform(image: tf.Tensor, transform: list, nearest: bool, fill: int) -> tf.Tensor:
    """Take each pixel (x, y) of the result from (a x + b y + c, d x + e y + f)."""
    result = tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=tf.stack([tf.cast(value, tf.float32) for value in transform])[None],
        output_shape=tf.shape(image)[:2],
        fill_value=float(fill),
        interpolation="NEAREST" if nearest else "BILINEAR",
        fill_mode="CONSTANT",
    )[0]
    return tf.ensure_shape(result, image.shape)


def _rows(image: tf.Tensor) -> tf.Tensor:
    """Reshape [H, W, C] to [H, W * C], because operations on a few long rows are several times faster."""
    return tf.reshape(image, [tf.shape(image)[0], tf.shape(image)[1] * image.shape[-1]])


def _along_rows(image: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Repeat values per channel, [C], to match `_rows`: [W * C]."""
    return tf.tile(values, [tf.shape(image)[1]])
