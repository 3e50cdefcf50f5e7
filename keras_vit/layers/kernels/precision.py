"""Precision of sums and statistics."""

from typing import Any

import keras
from keras import ops


def at_least_float32(x: Any) -> Any:
    """Return a tensor in float32, or as it is if it has a higher precision."""
    return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))


def has_16_bits(x: Any) -> bool:
    """Return whether the numbers of a tensor have 16 bits."""
    return keras.backend.standardize_dtype(x.dtype) in ("bfloat16", "float16")


def moments(x: Any) -> tuple[Any, Any]:
    """Return mean and variance over the last axis, `[..., 1]`, in at least float32.

    Those of 16-bit numbers are computed in one pass, as `E[x^2] - E[x]^2`. What cancels there is far below the
    precision of such numbers.

    Args:
        x: Tensor `[..., D]`.
    """
    wide = at_least_float32(x)
    mean = ops.mean(wide, axis=-1, keepdims=True)
    if has_16_bits(x):
        return mean, ops.maximum(ops.mean(wide * wide, axis=-1, keepdims=True) - mean * mean, 0.0)
    centered = wide - mean
    return mean, ops.mean(centered * centered, axis=-1, keepdims=True)  # integer TFLite files have no fused square
