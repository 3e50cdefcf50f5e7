"""Elementwise work in one pass over memory: XLA compiles it in training with TensorFlow on processors."""

import functools
import math
import os
from collections.abc import Callable
from typing import Any

import keras

from keras_vit.layers.kernels.choice import XLA, is_plain

SMALLEST = 1 << 16  # elements; below, a pass takes less time than a call, and compilation much more


def in_one_pass(function: Callable, *tensors: Any) -> Any:
    """Call a function of tensors, compiled if the first tensor `is_compiled`. It must be a function of a module."""
    return _program(function)(*tensors) if is_compiled(tensors[0]) else function(*tensors)


def is_compiled(x: Any) -> bool:
    """Return whether XLA computes elementwise work on tensors of the shape of `x`.

    A shape is compiled once. The sizes must be known where a step is traced, so that the number of programs is bounded:
    one for each trace, and for each batch size. Images of any size are computed by the formula.
    """
    if keras.backend.backend() != "tensorflow" or is_plain(XLA) or None in x.shape[1:]:
        return False
    if "--tf_xla_auto_jit=-1" in os.environ.get("TF_XLA_FLAGS", "").split():  # TensorFlow's switch, for all threads
        return False
    import tensorflow as tf

    if tf.executing_eagerly() or math.prod(x.shape[1:]) * (x.shape[0] or 1) < SMALLEST:
        return False
    return all(device.device_type == "CPU" for device in tf.config.list_logical_devices()) and _has_compiler()


@functools.cache
def _has_compiler() -> bool:
    """Return whether XLA compiles for processors; TensorFlow's build for TPUs has no compiler for them."""
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
