"""Python functions inside input pipelines, without the risk that they keep the process from ending.

A pipeline runs ahead in threads of TensorFlow. At the end of the process Python gives its lock to no other thread any
more. A thread that asks for it then waits for ever, and Python, which closes the pipeline, waits for the thread. So
calls are counted, and at the end the pipelines are told to make no more of them, before Python shuts down.
"""

import atexit
import functools
import time
from collections.abc import Callable, Sequence

import tensorflow as tf
from absl import logging

_SECONDS_TO_END = 30.0


def call_python(function: Callable[..., bytes], arguments: Sequence[tf.Tensor]) -> tf.Tensor:
    """Call a Python function that returns bytes; empty if it raised an error, or if the process is ending."""

    def call(*values):
        try:
            return function(*values)
        except Exception:  # an error would leave the call counted
            logging.exception("A function of an input pipeline failed.")
            return b""

    running, closed = _gate()
    with tf.control_dependencies([_add(running, 1)]):
        is_closed = tf.raw_ops.ReadVariableOp(resource=closed, dtype=tf.bool)
    result = tf.cond(is_closed, lambda: tf.constant(b""), lambda: tf.numpy_function(call, arguments, tf.string))
    with tf.control_dependencies([result]):
        done = _add(running, -1)
    with tf.control_dependencies([done]):
        return tf.ensure_shape(result, [])


def _add(counter: tf.Tensor, value: int):
    return tf.raw_ops.AssignAddVariableOp(resource=counter, value=tf.constant(value, tf.int64))


@functools.cache
def _gate() -> tuple[tf.Tensor, tf.Tensor]:
    """Handles of two variables: the number of calls under way, and whether the process is ending."""
    # Plain resources: a `tf.Variable` would become one of the strategy in whose scope the first pipeline is made.
    with tf.init_scope(), tf.device("CPU"):
        running = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name="keras_vit_calls_running")
        closed = tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name="keras_vit_calls_closed")
        tf.raw_ops.AssignVariableOp(resource=running, value=tf.constant(0, tf.int64))
        tf.raw_ops.AssignVariableOp(resource=closed, value=tf.constant(False))
    atexit.register(_close, running, closed)
    return running, closed


def _close(running: tf.Tensor, closed: tf.Tensor) -> None:
    tf.raw_ops.AssignVariableOp(resource=closed, value=tf.constant(True))
    deadline = time.monotonic() + _SECONDS_TO_END
    while int(tf.raw_ops.ReadVariableOp(resource=running, dtype=tf.int64)) > 0 and time.monotonic() < deadline:
        time.sleep(0.01)
