"""mixup and CutMix: each image and label of a batch is combined with the previous image and label.

`draw` draws the weight on the host, once per step and equal for all workers. `blend` combines the images as part of the
training step on the device, with `keras.ops`.

References:
    mixup: https://arxiv.org/abs/1710.09412
    CutMix: https://arxiv.org/abs/1905.04899
"""

from typing import Any

import tensorflow as tf
from keras import ops

from keras_vit.data import seeds
from keras_vit.util import checks


def check(mixup: float, cutmix: float) -> bool:
    """Return whether mixing is enabled. Raises a ValueError if a parameter is negative or not a number.

    Example:
    >>> check(mixup=0.2, cutmix=0.0), check(mixup=0.0, cutmix=0.0)
    (True, False)
    """
    values = [checks.finite_number(name, value, zero=True) for name, value in (("mixup", mixup), ("cutmix", cutmix))]
    return max(values) > 0


def draw(seed: int, step: tf.Tensor, mixup: float = 0.0, cutmix: float = 0.0) -> tf.Tensor:
    """Draw the weight of the original images in a step.

    The weight is distributed as Beta(alpha, alpha). As in big_vision, mixup uses the larger of the weight and its
    complement. If both methods are enabled, each step uses one of them, with equal probability.

    Args:
        seed: Seed of the run.
        step: Global step, an integer scalar.
        mixup: Alpha of mixup. 0 disables it.
        cutmix: Alpha of CutMix. 0 disables it.

    Returns:
        float32 scalar: the weight for mixup, or the negative weight for CutMix.

    Example:
    >>> weight = float(draw(seed=0, step=tf.constant(7), mixup=0.2))
    >>> 0.5 <= weight <= 1.0
    True
    """
    if not check(mixup, cutmix):
        raise ValueError("`mixup` or `cutmix` must be positive. Received: 0 for both.")
    shares = []
    for name, alpha in (("mixup", mixup), ("cutmix", cutmix)):
        if alpha > 0:
            share = _beta(alpha, seeds.pair(seeds.key(seed, "mix", name), step))
            shares.append(tf.maximum(share, 1.0 - share) if name == "mixup" else -share)
    if len(shares) == 1:
        return shares[0]
    use_mixup = tf.random.stateless_uniform([], seeds.pair(seeds.key(seed, "mix", "which"), step)) < 0.5
    return tf.where(use_mixup, shares[0], shares[1])


def _beta(alpha: float, seed: tf.Tensor) -> tf.Tensor:
    """Draw a number in (0, 1), distributed as Beta(alpha, alpha)."""
    # X / (X + Y) has a Beta distribution if X and Y have Gamma(alpha) distributions. X and Y underflow for small alpha,
    # so compute their logarithms. Gamma(alpha) is Gamma(alpha + 1) * U**(1 / alpha), with U uniform in (0, 1].
    larger = tf.random.stateless_gamma([2], seed, alpha + 1.0, dtype=tf.float64)
    uniform = 1.0 - tf.random.stateless_uniform([2], seed + 1, dtype=tf.float64)
    logs = tf.math.log(larger) + tf.math.log(uniform) / alpha
    share = tf.cast(tf.sigmoid(logs[0] - logs[1]), tf.float32)
    return tf.clip_by_value(share, 1e-6, 1.0 - 1e-6)  # not 0: a negative sign indicates CutMix


def blend(images: Any, one_hot: Any, lam: Any, center: Any, mixup: float = 0.0, cutmix: float = 0.0) -> tuple[Any, Any]:
    """Combine each image and label of a batch with the previous image and label.

    Args:
        images: float `[B, H, W, C]`.
        one_hot: float `[B, classes]`.
        lam: float32 `[B]`, the result of `draw`, repeated for the whole batch.
        center: float32 `[2]` in [0, 1): center of CutMix's box, relative to height and width.
        mixup: As in `draw`. `mixup` or `cutmix` must be positive.
        cutmix: As in `draw`.

    Returns:
        Images and labels, with the shapes and types of the inputs.

    Example:
    >>> images, one_hot = ops.eye(2)[:, :, None, None], ops.eye(2)
    >>> _, labels = blend(images, one_hot, lam=ops.array([0.75, 0.75]), center=ops.array([0.5, 0.5]), mixup=0.2)
    >>> ops.convert_to_numpy(labels).tolist()
    [[0.75, 0.25], [0.25, 0.75]]
    """
    partner_images, partner_labels = ops.roll(images, 1, axis=0), ops.roll(one_hot, 1, axis=0)
    share = ops.cast(ops.abs(lam[0]), "float32")
    height, width = images.shape[1:3]
    keep = share * ops.ones([height, width], dtype="float32")  # [H, W]: weight of the original pixels
    if cutmix > 0:
        box = _box(height, width, share, center)  # [H, W]: 1 outside, 0 inside
        keep = ops.where(lam[0] < 0, box, keep) if mixup > 0 else box
    # CutMix weights the labels by the actual area, because the box may be cut off at the border of the image.
    share = ops.mean(keep)
    keep = ops.cast(keep[None, :, :, None], images.dtype)
    share = ops.cast(share, one_hot.dtype)
    return keep * images + (1 - keep) * partner_images, share * one_hot + (1 - share) * partner_labels


def _box(height: int, width: int, share, center):
    """Return float32 `[H, W]`: 0 in a box around `center` with about `1 - share` of the area, and 1 elsewhere."""

    def outside(size, position):
        half = ops.sqrt(1.0 - share) * float(size) / 2
        middle = ops.floor(position * float(size))
        pixel = ops.arange(size, dtype="float32")
        return (pixel < middle - half) | (pixel >= middle + half)

    rows, columns = outside(height, center[0]), outside(width, center[1])
    return ops.cast(rows[:, None] | columns[None, :], "float32")
