"""The environment of processes that run on Keras' JAX backend, on the CPU."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
ON_JAX = {
    **os.environ,
    **{"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
    # Programs are small: nearly all of their time is that of the compiler. The compiled programs serve all processes.
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".pytest_cache" / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
