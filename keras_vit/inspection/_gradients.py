"""Gradients of a function of tensors. Keras has no such operation: this is the one place that asks for the backend."""

from collections.abc import Callable
from typing import Any

import keras


def gradients(function: Callable[[list[Any]], Any], tensors: list[Any]) -> list[Any]:
    """Return the gradients of `function(tensors)`, a scalar, with respect to each of the tensors.

    Raises:
        NotImplementedError: On a backend other than TensorFlow and JAX.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(tensors)
            value = function(tensors)
        return tape.gradient(value, tensors, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    if backend == "jax":
        import jax

        return jax.grad(function)(tensors)
    raise NotImplementedError(
        f"gradient_attention works with the TensorFlow and JAX backends. Received: {backend!r}. attention_rollout "
        "works with all."
    )
