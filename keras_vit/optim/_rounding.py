"""Products rounded to their dtype."""

from typing import Any

import keras


def product(factor: float, values: Any) -> Any:
    """Return `factor * values`, rounded to the dtype of `values`.

    XLA may leave out a rounding to bfloat16 between two operations that compute in float32. The reference rounds there,
    so on JAX, where the whole step is one program, the rounding is an operation of its own.
    """
    result = keras.ops.cast(factor, values.dtype) * values
    if keras.backend.backend() == "jax" and keras.backend.standardize_dtype(values.dtype) == "bfloat16":
        import jax

        result = jax.lax.reduce_precision(result, exponent_bits=8, mantissa_bits=7)
    return result
