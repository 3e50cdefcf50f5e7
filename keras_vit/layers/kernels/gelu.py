"""Exact and approximate GELU: training saves only the input, and inference fuses GELU with the dense layer."""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.layers import formulas
from keras_vit.layers.formulas import at_least_float32, has_16_bits
from keras_vit.layers.kernels.choice import uses_kernel
from keras_vit.layers.kernels.one_pass import in_one_pass, recompute_from


def gelu_tanh(x: Any, training: bool = False) -> Any:
    """Compute `x (1 + tanh(u)) / 2` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`."""
    return _with_backward("gelu_tanh", formulas.gelu_tanh, gelu_tanh_backward, x, training)


def gelu(x: Any, training: bool = False) -> Any:
    """Compute `x P(x)`, where `P` is the cumulative distribution function of the normal distribution."""
    return _with_backward("gelu", formulas.gelu, gelu_backward, x, training)


def gelu_tanh_backward(x: Any, d_output: Any) -> Any:
    """Return the derivative of the loss with respect to `x`.

    With `2 u = x (a + b x^2)` and `s = sigmoid(2 u)`, which equals `(1 + tanh(u)) / 2`, the derivative of GELU is
    `s + x s (1 - s) (a + 3 b x^2)`.
    """
    a = math.sqrt(8 / math.pi)
    b = 0.044715 * a
    x = at_least_float32(x)
    square = x * x
    s = ops.sigmoid(x * (a + b * square))
    return d_output * ops.cast(s + x * s * (1 - s) * (a + 3 * b * square), d_output.dtype)


def gelu_backward(x: Any, d_output: Any) -> Any:
    """Return the derivative of the loss with respect to `x`: `d_output (P(x) + x p(x))`, with the density `p`."""
    x = at_least_float32(x)
    density = ops.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return d_output * ops.cast(0.5 * (1 + ops.erf(x / math.sqrt(2))) + x * density, d_output.dtype)


def _with_backward(name: str, formula: Callable, backward: Callable, x: Any, training: bool) -> Any:
    """Compute a formula, and save only its input. The backward pass computes the derivative in at least float32."""
    if not uses_kernel(name):
        return formula(x)

    @ops.custom_gradient
    def compute(x):
        def gradient(*arguments, upstream=None):
            d_output = arguments[0] if upstream is None else upstream
            # In 16 bits, recomputation costs 5% of the time of a ViT-B/16 step on a CPU, more than the memory is worth.
            (saved,) = (x,) if has_16_bits(x) else recompute_from(d_output, x)
            return in_one_pass(backward, saved, d_output)

        # Inference fuses GELU with the preceding product, and its graph may be exported.
        return in_one_pass(formula, x) if training else formula(x), gradient

    return compute(x)


def as_rows(x: Any, training: bool) -> Any:
    """Reshape `[B, N, D]` to `[B*N, D]` if this lets TensorFlow's graph optimizer fuse product, bias and GELU.

    Training keeps the shape: nothing is fused because GELU's input is saved, and a reshape would copy data on a TPU.
    """
    if training or keras.backend.backend() != "tensorflow":
        return x
    return ops.reshape(x, (-1, x.shape[-1]))


def as_sequence(rows: Any, x: Any) -> Any:
    """Undo `as_rows` for 16-bit tensors: reshape `[B*N, ...]` to `[B, N, ...]`, so that the next product is not fused.

    oneDNN does not use AMX for fused products with variables.
    """
    if len(rows.shape) == len(x.shape) or not has_16_bits(rows):
        return rows
    return ops.reshape(rows, (*ops.shape(x)[:-1], rows.shape[-1]))
