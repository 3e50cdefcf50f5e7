"""Precision of sums and statistics."""

from typing import Any

import keras
from keras import ops


def at_least_float32(x: Any) -> Any:
    """Return a tensor in float32, or as it is if it has a higher precision."""
    return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
