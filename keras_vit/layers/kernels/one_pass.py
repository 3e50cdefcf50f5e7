"""Elementwise functions in one pass over memory, compiled by XLA when TensorFlow trains on CPUs; recomputation."""

import functools
import math
import os
from collections.abc import Callable
from typing import Any

import keras

from keras_vit.layers.kernels.choice import XLA, is_plain

SMALLEST = 1 << 16  # elements; for smaller tensors, calling the compiled function takes longer than a pass


def in_one_pass(function: Callable, *tensors: Any) -> Any:
    """Call a module-level function, compiled by XLA if `is_compiled` returns True for the first tensor."""
    return _program(function)(*tensors) if is_compiled(tensors[0]) else function(*tensors)


def is_compiled(x: Any) -> bool:
    """Return whether to compile elementwise functions of `x` with XLA.

    Each shape is compiled separately. All sizes except the batch size must therefore be static. This limits compilation
    to one program for each trace and batch size. Images of variable size use the formula.
    """
    if keras.backend.backend() != "tensorflow" or is_plain(XLA) or None in x.shape[1:]:
        return False
    if "--tf_xla_auto_jit=-1" in os.environ.get("TF_XLA_FLAGS", "").split():  # TensorFlow's flag to disable XLA
        return False
    import tensorflow as tf

    if tf.executing_eagerly() or math.prod(x.shape[1:]) * (x.shape[0] or 1) < SMALLEST:
        return False
    return all(device.device_type == "CPU" for device in tf.config.list_logical_devices()) and _has_compiler()


@functools.cache
def _has_compiler() -> bool:
    """Return whether XLA can compile for CPUs. TensorFlow's build for TPUs cannot."""
    import tensorflow as tf

    try:
        with tf.init_scope():
            _program(_increment)(tf.constant(0.0))
    except tf.errors.OpError:
        return False
    return True


def _increment(x):
    return x + 1


@functools.cache
def _program(function: Callable) -> Callable:
    import tensorflow as tf

    return tf.function(function, jit_compile=True, autograph=False)


def recompute_from(upstream: Any, *tensors: Any) -> tuple[Any, ...]:
    """Return copies of `tensors` from which the backward pass can recompute.

    A control dependency on the derivative `upstream` keeps TensorFlow's graph optimizer from merging the recomputation
    with the forward pass. In JAX, XLA decides what to recompute.
    """
    if keras.backend.backend() != "tensorflow":
        return tensors
    import tensorflow as tf

    with tf.control_dependencies([upstream]):
        return tuple(tf.identity(tensor) for tensor in tensors)
