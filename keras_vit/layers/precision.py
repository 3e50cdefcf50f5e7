"""Precision of numbers."""

from typing import Any

import keras
from keras import ops


def at_least_float32(x: Any) -> Any:
    """Return a tensor in float32, or as it is if it has a higher precision."""
    return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))


def has_16_bits(x: Any) -> bool:
    """Return whether the numbers of a tensor have 16 bits."""
    return keras.backend.standardize_dtype(x.dtype) in ("bfloat16", "float16")
