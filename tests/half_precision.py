"""Whether this processor adds the products of bfloat16 numbers in float32."""

import functools

import numpy as np


@functools.cache
def sums_are_exact():
    """Whether TensorFlow's `einsum` keeps a sum of 4,096 ones; without AVX-512 it adds groups of them in bfloat16."""
    import tensorflow as tf

    ones = tf.einsum("bnd,dhk->bnhk", tf.ones([1, 8, 4096], tf.bfloat16), tf.ones([4096, 2, 4], tf.bfloat16))
    return bool(np.all(ones == 4096))


def assert_same_function(actual, expected):
    """Check that two orders of the same operations agree: exactly, or up to the sums of this processor."""
    actual, expected = np.asarray(actual, np.float32), np.asarray(expected, np.float32)
    # A sum of eight in bfloat16 is off by up to 8 * 2^-9 of the largest, and attention has three of them in a row.
    atol = 0.0 if sums_are_exact() else 3 * 8 * 2**-9 * np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=0.0, atol=atol)
