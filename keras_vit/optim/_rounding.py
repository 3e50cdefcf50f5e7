"""Products that are really rounded to their type."""

import keras


def product(factor: float, values):
    """Returns `factor * values` in the type of `values`, rounded to it.

    XLA may leave out a rounding to bfloat16 between two operations that compute in float32. The reference's numbers
    have it, so on JAX, where the whole step is one program, it is asked for by name.
    """
    result = keras.ops.cast(factor, values.dtype) * values
    if keras.backend.backend() == "jax" and keras.backend.standardize_dtype(values.dtype) == "bfloat16":
        import jax

        result = jax.lax.reduce_precision(result, exponent_bits=8, mantissa_bits=7)
    return result
