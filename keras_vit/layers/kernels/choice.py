"""Choice between a kernel and its plain formula."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import keras

from keras_vit import _checks
from keras_vit.layers.precision import has_16_bits

KERNELS = ("attention", "feed_forward", "gelu", "gelu_tanh", "group_norm", "layer_norm", "project")
XLA = "xla"  # of kernels: work that XLA compiles on processors
_ONLY_16_BITS = ("project",)  # in float32, where it saves nothing on a CPU, the layers are called
# Kernels that are switched off. Every thread has a value of its own.
_plain: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar("plain", default=frozenset())


def is_plain(name: str) -> bool:
    """Return whether a name is switched off."""
    return name in _plain.get()


def uses_kernel(name: str, x: Any) -> bool:
    """Whether a kernel computes its formula for a tensor: derivatives must be written out, and save something."""
    if is_plain(name) or keras.backend.backend() not in ("tensorflow", "jax"):
        return False
    return has_16_bits(x) or name not in _ONLY_16_BITS


@contextlib.contextmanager
def plain(*names: str) -> Iterator[None]:
    """Use plain formulas in what this thread traces or runs within a `with` block, such as in exported programs.

    Args:
        *names: Kernels to leave out, or `"xla"` for what XLA compiles in them; all of it without a name.

    Example:
    >>> from keras_vit.layers import kernels
    >>> with kernels.plain():
    ...     y = kernels.gelu_tanh(np.zeros(2, "float32"))
    """
    for name in names:
        _checks.choice("names", name, (*KERNELS, XLA))
    token = _plain.set(_plain.get() | set(names or (*KERNELS, XLA)))
    try:
        yield
    finally:
        _plain.reset(token)
