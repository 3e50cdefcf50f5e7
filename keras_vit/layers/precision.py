"""Helpers for floating-point precision."""

from typing import Any

import keras
from keras import ops


def at_least_float32(x: Any) -> Any:
    """Cast a tensor to float32 unless its precision is higher."""
    return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))


def has_16_bits(x: Any) -> bool:
    """Return whether a tensor is bfloat16 or float16."""
    return keras.backend.standardize_dtype(x.dtype) in ("bfloat16", "float16")
