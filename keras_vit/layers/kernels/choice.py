"""Choice between a kernel and its plain formula."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import keras

from keras_vit.layers.formulas import has_16_bits
from keras_vit.util import checks

KERNELS = ("attention", "feed_forward", "gelu", "gelu_tanh", "group_norm", "layer_norm", "project")
XLA = "xla"  # the parts of kernels that XLA compiles on CPUs
_ONLY_16_BITS = ("project",)  # saves nothing in float32 on a CPU
# Disabled kernels, separately for each thread.
_plain: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar("plain", default=frozenset())


def is_plain(name: str) -> bool:
    """Return whether a kernel, or `"xla"`, is disabled."""
    return name in _plain.get()


def uses_kernel(name: str, x: Any) -> bool:
    """Return whether a kernel is enabled, supported by the backend, and worthwhile for the dtype of `x`."""
    if is_plain(name) or keras.backend.backend() not in ("tensorflow", "jax"):
        return False
    return has_16_bits(x) or name not in _ONLY_16_BITS


@contextlib.contextmanager
def plain(*names: str) -> Iterator[None]:
    """Disable kernels in all code that this thread traces or runs within a `with` block, such as an export.

    Args:
        *names: Kernels to replace with their plain formulas, or `"xla"` to disable compilation by XLA on CPUs. Without
            names, all kernels and XLA are disabled.

    Example:
    >>> from keras_vit.layers import kernels
    >>> with kernels.plain():
    ...     y = kernels.gelu_tanh(np.zeros(2, "float32"))
    """
    for name in names:
        checks.choice("names", name, (*KERNELS, XLA))
    token = _plain.set(_plain.get() | set(names or (*KERNELS, XLA)))
    try:
        yield
    finally:
        _plain.reset(token)
