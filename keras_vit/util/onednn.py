"""TensorFlow's oneDNN operations, which TensorFlow leaves off on many processors.

On Linux and x86, TensorFlow turns them on only for processors with AVX512_VNNI, AVX512_BF16, AVX_VNNI or AMX. On the
others, inference takes 1.2 times and a training step 1.4 times as long without them. On ARM, TensorFlow turns
them on for Neoverse V1 and calls them experimental elsewhere; its choice is kept there. macOS has no such operations.
"""

import functools
import os
import platform
import sys

from absl import logging

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
_IS_X86 = platform.machine().lower() in ("x86_64", "amd64")


def turn_on() -> None:
    """Turn the operations on, unless the environment variable is set or TensorFlow is imported, which is too late."""
    if _IS_X86 and "tensorflow" not in sys.modules:
        os.environ.setdefault(VARIABLE, "1")


def is_on() -> bool:
    """Return whether TensorFlow uses the operations."""
    from tensorflow.python.util import _pywrap_util_port  # no public function returns this

    return _pywrap_util_port.IsMklEnabled()


@functools.cache
def advise() -> None:
    """Log once that TensorFlow computes without oneDNN, unless the environment variable is set."""
    if not _IS_X86 or sys.platform != "linux" or VARIABLE in os.environ or is_on():
        return
    import tensorflow as tf

    if all(device.device_type == "CPU" for device in tf.config.list_physical_devices()):
        logging.warning(
            "TensorFlow was imported before keras_vit and computes without oneDNN, which takes 1.2 to 1.4 times as "
            "long on this processor. Import keras_vit first, or set %s=1.",
            VARIABLE,
        )
