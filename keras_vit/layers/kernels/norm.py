"""Normalization that saves only the input and its statistics for the backward pass."""

from typing import Any

from keras import ops

from keras_vit.layers import formulas
from keras_vit.layers.formulas import at_least_float32, group_moments, mean_over_groups, moments
from keras_vit.layers.kernels.choice import uses_kernel
from keras_vit.layers.kernels.one_pass import recompute_from


def layer_norm(x: Any, scale: Any, bias: Any, epsilon: float) -> Any:
    """Compute `(x - mean) / sqrt(variance + epsilon) * scale + bias` over the last axis.

    References:
        - [Layer Normalization](https://arxiv.org/abs/1607.06450)
    """
    if not uses_kernel("layer_norm"):
        return formulas.layer_norm(x, scale, bias, epsilon)
    rows = tuple(range(len(x.shape) - 1))

    @ops.custom_gradient
    def norm(x, scale, bias):
        mean, variance = moments(x)
        factor = ops.rsqrt(variance + epsilon)  # [..., 1], like the mean

        def gradient(*arguments, upstream=None):
            d_output = at_least_float32(arguments[0] if upstream is None else upstream)
            (saved,) = recompute_from(d_output, x)
            normalized = (at_least_float32(saved) - mean) * factor
            d_normalized = d_output * scale
            slope = ops.mean(d_normalized * normalized, axis=-1, keepdims=True)
            offset = ops.mean(d_normalized, axis=-1, keepdims=True)
            d_x = factor * (d_normalized - offset - normalized * slope)
            return ops.cast(d_x, x.dtype), ops.sum(d_output * normalized, axis=rows), ops.sum(d_output, axis=rows)

        return ops.cast((at_least_float32(x) - mean) * factor * scale + bias, x.dtype), gradient

    return norm(x, scale, bias)


def group_norm(x: Any, scale: Any, bias: Any, groups: int, epsilon: float) -> Any:
    """Compute `(x - mean) / sqrt(variance + epsilon) * scale + bias` over space and groups of channels.

    The derivative of `x` is a linear combination of the upstream derivative and `x`. The coefficients for each image
    and channel follow from two sums over the positions.

    References:
        - [Group Normalization](https://arxiv.org/abs/1803.08494)
    """
    if not uses_kernel("group_norm"):
        return formulas.group_norm(x, scale, bias, groups, epsilon)

    @ops.custom_gradient
    def norm(x, scale, bias):
        wide = at_least_float32(x)
        mean, variance = group_moments(wide, groups)  # [B, 1, 1, C]
        factor = ops.rsqrt(variance + epsilon)

        def gradient(*arguments, upstream=None):
            d_output = at_least_float32(arguments[0] if upstream is None else upstream)
            (saved,) = recompute_from(d_output, x)
            centered = at_least_float32(saved) - mean
            d_bias = ops.mean(d_output, axis=(1, 2), keepdims=True)  # [B, 1, 1, C], like the next three
            d_scale = ops.mean(d_output * centered, axis=(1, 2), keepdims=True) * factor
            slope = mean_over_groups(d_scale * scale, groups)
            offset = mean_over_groups(d_bias * scale, groups)
            d_x = d_output * (factor * scale) - centered * (factor * factor * slope) - factor * offset
            positions = ops.cast(ops.shape(x)[1] * ops.shape(x)[2], wide.dtype)
            sums = [ops.sum(per_image, axis=(0, 1, 2)) * positions for per_image in (d_scale, d_bias)]
            return ops.cast(d_x, x.dtype), *sums

        return ops.cast((wide - mean) * (factor * scale) + bias, x.dtype), gradient

    return norm(x, scale, bias)
