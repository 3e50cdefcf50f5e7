"""Models with weights as constants of the graph, so that oneDNN can choose the layout of the weights.

TensorFlow lets oneDNN store weights in a blocked layout only if they are constants. With variables in bfloat16, the
first matrix product of each MLP does not use AMX, and small models are slower with AVX512-BF16. Optimizing the graph
keeps many copies of the constants in memory, and takes as long as dozens of calls.
"""

from collections.abc import Callable
from typing import Any

import keras
import ml_dtypes
import numpy as np
import tensorflow as tf

# Maximum size of the constants in bytes, by instruction set. Optimizing 172 MB (ViT-B/16) takes 3 GB of memory, and
# without AMX it saves no time on two cores. Optimizing 44 MB (ViT-S/16) takes 0.8 GB.
_MAX_BYTES = {"amx_bf16": 2**28, "avx512_bf16": 2**26}


def pays(model: keras.Model) -> bool:
    """Return whether constants make many predictions faster: for bfloat16 models on CPUs with bfloat16 instructions.

    Float32 gains nothing: oneDNN takes the same time for both layouts.
    """
    if keras.backend.backend() != "tensorflow" or model.dtype_policy.compute_dtype != "bfloat16":
        return False
    numbers = sum(int(np.prod(variable.shape)) for variable in model.variables)
    on_cpu = len(tf.config.list_logical_devices()) == len(tf.config.list_logical_devices("CPU"))
    return on_cpu and 2 * numbers <= max((_MAX_BYTES[name] for name in _instructions()), default=0)


def function(model: keras.Model, spec: tf.TensorSpec) -> Callable:
    """Return a function that runs inference on images with the current weights of a model."""
    # Read the values before the trace, where variables have no values.
    values = {id(variable): variable.numpy() for variable in model.variables}

    def call(images: tf.Tensor) -> Any:
        with _Constants(values):
            return model(images, training=False)

    return tf.function(call, input_signature=[spec], autograph=False).get_concrete_function()


class _Constants(keras.StatelessScope):
    """Scope that replaces each variable with a constant of the graph, in the dtype in which the layer computes."""

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
    """Return the bfloat16 instruction sets of the processor."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return _MAX_BYTES.keys() & set(file.read().split())
    except OSError:  # not Linux: not measured
        return set()
