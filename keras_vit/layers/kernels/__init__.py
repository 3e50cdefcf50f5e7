"""Implementations of formulas that save memory or memory traffic in training.

A kernel has the signature of its plain formula and computes the same values by the same operations. Only its backward
pass differs: it is written out, and so saves fewer tensors or moves less than differentiation op by op. On NVIDIA GPUs
under JAX, attention is cuDNN's, whose values are the same up to the rounding of the dtype. A layer enters a kernel by
`select(formula)(...)`, in training and in inference alike.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar

import keras

from keras_vit import _checks
from keras_vit.layers.kernels.attention import attention
from keras_vit.layers.kernels.gelu import gelu_tanh
from keras_vit.layers.kernels.norm import group_norm, layer_norm
from keras_vit.layers.kernels.projection import project
from keras_vit.layers.kernels.rows import as_rows

Formula = TypeVar("Formula", bound=Callable[..., Any])

KERNELS: dict[str, Any] = {
    "attention": attention,
    "gelu_tanh": gelu_tanh,
    "group_norm": group_norm,
    "layer_norm": layer_norm,
    "project": project,
}
_chosen: Mapping[str, Any] | None = None  # None for the kernels that the backend supports

__all__ = ["as_rows", "mode", "replace", "select"]


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
    chosen = _chosen
    if chosen is None:
        chosen = KERNELS if keras.backend.backend() in ("tensorflow", "jax") else {}
    return chosen.get(formula.__name__, formula)


@contextlib.contextmanager
def mode(name: Literal["auto", "plain"]) -> Iterator[None]:
    """Choose the implementations of what is traced or run within a `with` block.

    Args:
        name: `"auto"` for kernels, or `"plain"` for the plain formulas, such as for programs that are exported.
    """
    _checks.choice("mode", name, ("auto", "plain"))
    with _choose(None if name == "auto" else {}):
        yield


@contextlib.contextmanager
def replace(**implementations: Callable[..., Any]) -> Iterator[None]:
    """Use other implementations of the formulas named, and the plain ones of all others, within a `with` block.

    Args:
        **implementations: Functions by the name of the formula whose signature they have.
    """
    with _choose(implementations):
        yield


@contextlib.contextmanager
def _choose(implementations: Mapping[str, Any] | None) -> Iterator[None]:
    global _chosen
    before, _chosen = _chosen, implementations
    try:
        yield
    finally:
        _chosen = before
