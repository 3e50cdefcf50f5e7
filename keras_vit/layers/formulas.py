"""Plain formulas, whose results the kernels must match."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops


def at_least_float32(x: Any) -> Any:
    """Cast a tensor to float32 unless its precision is higher."""
    return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))


def has_16_bits(x: Any) -> bool:
    """Return whether a tensor is bfloat16 or float16."""
    return keras.backend.standardize_dtype(x.dtype) in ("bfloat16", "float16")


def attention(
    query: Any, key: Any, value: Any, bias: Any = None, dropout: Callable[[Any], Any] | None = None
) -> tuple[Any, Any]:
    """Compute `softmax(query key^T + bias) value`.

    Args:
        query: Scaled tensor `[B, N, H, K]`.
        key: Tensor `[B, M, H, K]`.
        value: Tensor `[B, M, H, K]`.
        bias: Tensor `[B, H, N, M]`, or None.
        dropout: Function that applies dropout to the attention weights, or None.

    Returns:
        The output `[B, N, H, K]` and the attention weights before dropout `[B, H, N, M]`.
    """
    logits = ops.einsum("bnhk,bmhk->bhnm", query, key)
    weights = ops.softmax(logits if bias is None else logits + bias, axis=-1)
    used = weights if dropout is None else dropout(weights)
    return ops.einsum("bhnm,bmhk->bnhk", used, value), weights


def layer_norm(x: Any, scale: Any, bias: Any, epsilon: float) -> Any:
    """Normalize the last axis of `x` with statistics in at least float32."""
    mean, variance = moments(x)  # [..., 1]
    return ops.cast((at_least_float32(x) - mean) * ops.rsqrt(variance + epsilon) * scale + bias, x.dtype)


def group_norm(x: Any, scale: Any, bias: Any, groups: int, epsilon: float) -> Any:
    """Normalize `[B, H, W, C]` over space and groups of channels."""
    wide = at_least_float32(x)
    mean, variance = group_moments(wide, groups)  # [B, 1, 1, C]
    return ops.cast((wide - mean) * (ops.rsqrt(variance + epsilon) * scale) + bias, x.dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
def gelu(x: Any) -> Any:
    """Compute the exact GELU, with the error function."""
    return keras.activations.gelu(x, approximate=False)


@keras.saving.register_keras_serializable(package="keras_vit")
def gelu_tanh(x: Any) -> Any:
    """Compute the tanh approximation of GELU, the reference's activation."""
    return keras.activations.gelu(x, approximate=True)


def moments(x: Any) -> tuple[Any, Any]:
    """Return the mean and variance `[..., 1]` over the last axis of `[..., D]`, in at least float32.

    For 16-bit inputs the variance is `E[x^2] - E[x]^2`, which needs one pass over `x`. The cancellation error of this
    formula is far below the precision of 16-bit inputs.
    """
    wide = at_least_float32(x)
    mean = ops.mean(wide, axis=-1, keepdims=True)
    if has_16_bits(x):
        return mean, ops.maximum(ops.mean(wide * wide, axis=-1, keepdims=True) - mean * mean, 0.0)
    centered = wide - mean
    return mean, ops.mean(centered * centered, axis=-1, keepdims=True)  # integer TFLite files have no fused square


def group_moments(x: Any, groups: int) -> tuple[Any, Any]:
    """Return the mean and variance of each channel's group, `[B, 1, 1, C]`, for an input `[B, H, W, C]`."""
    # Reduce each channel first, then the channels of a group, to avoid a pass over a five-dimensional view.
    mean = ops.mean(x, axis=(1, 2), keepdims=True)
    centered = x - mean
    variance = ops.mean(centered * centered, axis=(1, 2), keepdims=True)
    group_mean = mean_over_groups(mean, groups)
    offset = mean - group_mean
    return group_mean, mean_over_groups(variance + offset * offset, groups)


def mean_over_groups(x: Any, groups: int) -> Any:
    """Replace each channel of `[B, 1, 1, C]` with the mean of its group."""
    channels = x.shape[-1]
    grouped = ops.reshape(x, (-1, 1, 1, groups, channels // groups))
    grouped = ops.mean(grouped, axis=-1, keepdims=True)  # [B, 1, 1, G, 1]
    grouped = ops.broadcast_to(grouped, (ops.shape(x)[0], 1, 1, groups, channels // groups))
    return ops.reshape(grouped, (-1, 1, 1, channels))
