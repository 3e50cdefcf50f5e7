"""Implementations of formulas that save memory or memory traffic in training.

A kernel has the signature of its plain formula and computes the same values by the same operations. Only its backward
pass differs: it is written out, and so saves fewer tensors or moves less than differentiation op by op. A layer enters
a kernel by `select(formula)(...)`, in training and in inference alike.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import keras

from keras_vit import _checks
from keras_vit.layers.kernels.attention import attention
from keras_vit.layers.kernels.gelu import gelu_tanh
from keras_vit.layers.kernels.norm import group_norm, layer_norm
from keras_vit.layers.kernels.projection import project
from keras_vit.layers.kernels.rows import as_rows

Formula = TypeVar("Formula", bound=Callable[..., Any])

_KERNELS: dict[str, Any] = {
    "attention": attention,
    "gelu_tanh": gelu_tanh,
    "group_norm": group_norm,
    "layer_norm": layer_norm,
    "project": project,
}
_mode: str = "auto"

__all__ = ["as_rows", "mode", "select"]


def select(formula: Formula) -> Formula:
    """Return the implementation to use for a formula: its kernel, or the formula itself.

    The formula itself is used in the mode `"plain"`, and by backends without derivatives that can be written out.

    Args:
        formula: Plain function. One that no kernel of the same name implements is returned as it is.

    Example:
    >>> from keras_vit.layers import kernels
    >>> from keras_vit.layers.normalization import layer_norm
    >>> with kernels.mode("plain"):
    ...     kernels.select(layer_norm) is layer_norm
    True
    """
    if _mode == "plain" or keras.backend.backend() not in ("tensorflow", "jax"):
        return formula
    return _KERNELS.get(formula.__name__, formula)


@contextlib.contextmanager
def mode(name: Literal["auto", "plain"]) -> Iterator[None]:
    """Choose the implementations of what is traced or run within a `with` block.

    Args:
        name: `"auto"` for kernels, or `"plain"` for the plain formulas, such as for programs that are exported.
    """
    global _mode
    before, _mode = _mode, _checks.choice("mode", name, ("auto", "plain"))
    try:
        yield
    finally:
        _mode = before
