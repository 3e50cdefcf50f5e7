"""Python callbacks in tf.data that never block interpreter shutdown.

A pipeline prefetches in threads of TensorFlow. During shutdown, Python no longer gives the GIL to other threads. A
callback would wait forever for the GIL, and Python would wait forever for the pipeline. To avoid this deadlock, running
callbacks are counted. An exit handler forbids new callbacks and waits until the running callbacks have returned.
"""

import atexit
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

_SECONDS_TO_END = 30.0


def call_python(function: Callable[..., Any], arguments: Sequence[Any], results: Any) -> Any:
    """Call a Python function of arrays. `arguments` and `results` are nested structures.

    `results` has the structure, the shapes and the types of the results. Fails with the message of the error if the
    function fails, and if the process is ending.
    """
    expected = tf.nest.flatten(results)

    def nothing():
        return [tf.zeros(result.shape, result.dtype) for result in expected]

    def call(*values):
        try:
            return [b"", *tf.nest.flatten(function(*tf.nest.pack_sequence_as(arguments, values)))]
        except Exception as error:  # after an error, the call would remain counted as running
            return [str(error).encode() or b"The function failed.", *nothing()]

    running, closed = _gate()
    with tf.control_dependencies([_add(running, 1)]):
        is_closed = tf.raw_ops.ReadVariableOp(resource=closed, dtype=tf.bool)
    problem, *values = tf.cond(
        is_closed,
        lambda: [tf.constant("The process is ending."), *nothing()],
        lambda: tf.numpy_function(
            call, tf.nest.flatten(arguments), [tf.string, *(result.dtype for result in expected)]
        ),
    )
    with tf.control_dependencies([problem]):
        done = _add(running, -1)
    with tf.control_dependencies([done]):
        succeeded = tf.equal(problem, "")
    # `tf.debugging.Assert` would need a condition, which takes time.
    with tf.control_dependencies([tf.raw_ops.Assert(condition=succeeded, data=[problem])]):
        values = [tf.ensure_shape(value, result.shape) for value, result in zip(values, expected, strict=True)]
    return tf.nest.pack_sequence_as(results, values)


def _add(counter: tf.Tensor, value: int):
    return tf.raw_ops.AssignAddVariableOp(resource=counter, value=tf.constant(value, tf.int64))


@functools.cache
def _gate() -> tuple[tf.Tensor, tf.Tensor]:
    """Return the handles of two variables: the number of running calls, and whether the process is ending."""
    # Not `tf.Variable`s, which would belong to the strategy in whose scope the first pipeline is created.
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
