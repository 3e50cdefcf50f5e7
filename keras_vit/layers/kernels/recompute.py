"""Recomputation in the backward pass, protected from TensorFlow's graph optimizer."""

from typing import Any

import keras


def recompute_from(upstream: Any, *tensors: Any) -> tuple[Any, ...]:
    """Return copies of `tensors` from which the backward pass can recompute.

    TensorFlow's graph optimizer would merge the recomputation with the forward pass and keep its result in memory.
    A control dependency on the derivative `upstream` prevents that. In JAX, XLA decides what to recompute.
    """
    if keras.backend.backend() != "tensorflow":
        return tensors
    import tensorflow as tf

    with tf.control_dependencies([upstream]):
        return tuple(tf.identity(tensor) for tensor in tensors)
