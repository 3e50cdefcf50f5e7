"""Sequences as matrices of rows, which TensorFlow multiplies faster in inference."""

from typing import Any

import keras
from keras import ops


def as_rows(x: Any, training: bool) -> Any:
    """Return the tokens of a sequence as the rows of a matrix where this makes dense layers faster; else the sequence.

    TensorFlow's graph optimizer fuses product, bias and GELU for matrices only. In training nothing is fused, as GELU's
    input is saved, and a TPU would copy the sequence to change its shape.

    Args:
        x: Tensor `[B, N, D]`.
        training: Whether a backward pass follows.

    Returns:
        `[B*N, D]` or `[B, N, D]`, for layers that treat each token on its own.
    """
    if training or keras.backend.backend() != "tensorflow":
        return x
    return ops.reshape(x, (-1, x.shape[-1]))
