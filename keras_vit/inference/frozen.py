"""Weights as constants of the graph, so that oneDNN chooses their layout.

TensorFlow lets oneDNN lay weights out in blocks only if they are constants. With variables, the first matrix product of
each MLP in bfloat16 runs without AMX on processors that have it, and small models run slower on those with AVX512-BF16.
The graph's optimization holds many copies of the constants, and takes as long as dozens of calls.
"""

from collections.abc import Callable
from typing import Any

import keras
import ml_dtypes
import numpy as np
import tensorflow as tf

# Constants in bytes at most, by instruction set: the optimization of 172 MB (ViT-B/16) takes 3 GB, and without AMX
# saves no time on two cores. That of 44 MB (ViT-S/16) takes 0.8 GB.
_MAX_BYTES = {"amx_bf16": 2**28, "avx512_bf16": 2**26}


def pays(model: keras.Model) -> bool:
    """Return whether many predictions of a model are faster with constants: in bfloat16, on a CPU that computes in it.

    In float32 they are not: oneDNN takes the same time for both layouts.
    """
    if keras.backend.backend() != "tensorflow" or model.dtype_policy.compute_dtype != "bfloat16":
        return False
    numbers = sum(int(np.prod(variable.shape)) for variable in model.variables)
    on_cpu = len(tf.config.list_logical_devices()) == len(tf.config.list_logical_devices("CPU"))
    return on_cpu and 2 * numbers <= max((_MAX_BYTES[name] for name in _instructions()), default=0)


def function(model: keras.Model, spec: tf.TensorSpec) -> Callable:
    """Return a model at inference as a function of images, whose weights are those of now."""
    # Read before the trace: variables have no values inside it.
    values = {id(variable): variable.numpy() for variable in model.variables}

    def call(images: tf.Tensor) -> Any:
        with _Constants(values):
            return model(images, training=False)

    return tf.function(call, input_signature=[spec], autograph=False).get_concrete_function()


class _Constants(keras.StatelessScope):
    """Scope that replaces each variable by a constant of the graph, of the dtype that the layer computes in."""

    def __init__(self, values: dict[int, np.ndarray]):
        super().__init__(initialize_variables=False)
        self._values = values
        self._constants: dict[tuple[int, str], tf.Tensor] = {}

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor:
        key = id(variable), variable.dtype
        if key not in self._constants:
            dtype = ml_dtypes.bfloat16 if variable.dtype == "bfloat16" else variable.dtype
            self._constants[key] = tf.constant(self._values[key[0]].astype(dtype))
        return self._constants[key]


def _instructions() -> set[str]:
    """Return which instruction sets for bfloat16 the processor has."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return _MAX_BYTES.keys() & set(file.read().split())
    except OSError:  # another system than Linux, where it was not measured
        return set()
