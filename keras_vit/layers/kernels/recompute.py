"""Recomputation in the backward pass, which TensorFlow's graph optimizer would undo."""

from typing import Any

import keras


def recompute_from(upstream: Any, *tensors: Any) -> tuple[Any, ...]:
    """Return the inputs of a recomputation in the backward pass.

    TensorFlow's graph optimizer merges equal computations and keeps the result in between. It does not merge those that
    wait for the derivative `upstream`. XLA, which fuses such work into the operations that need it, is left to decide.
    """
    if keras.backend.backend() != "tensorflow":
        return tensors
    import tensorflow as tf

    with tf.control_dependencies([upstream]):
        return tuple(tf.identity(tensor) for tensor in tensors)
