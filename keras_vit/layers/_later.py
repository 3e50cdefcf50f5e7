"""When the backward pass may begin to compute."""

import keras


def later(upstream, *tensors):
    """Returns tensors for a backward pass that computes again what the forward pass did.

    TensorFlow's graph optimiser would notice that it is the same, compute it once and keep it. It does not when this
    waits for the derivative `upstream`. XLA, which fuses such work into what needs it, is left to decide.
    """
    if keras.backend.backend() != "tensorflow":
        return tensors
    import tensorflow as tf

    with tf.control_dependencies([upstream]):
        return tuple(tf.identity(tensor) for tensor in tensors)
