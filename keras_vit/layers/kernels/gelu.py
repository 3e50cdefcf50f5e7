"""Both forms of GELU, whose backward pass saves only the input, and in inference their fusion with the product."""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.layers import formulas
from keras_vit.layers.kernels.choice import uses_kernel
from keras_vit.layers.kernels.one_pass import in_one_pass
from keras_vit.layers.kernels.recompute import recompute_from
from keras_vit.layers.precision import at_least_float32, has_16_bits


def gelu_tanh(x: Any, training: bool = False) -> Any:
    """Compute `x (1 + tanh(u)) / 2` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`."""
    return _with_backward("gelu_tanh", formulas.gelu_tanh, gelu_tanh_backward, x, training)


def gelu(x: Any, training: bool = False) -> Any:
    """Compute `x P(x)` with the distribution function `P` of the normal distribution."""
    return _with_backward("gelu", formulas.gelu, gelu_backward, x, training)


def gelu_tanh_backward(x: Any, d_output: Any) -> Any:
    """Return the derivative of `x`.

    `(1 + tanh(u)) / 2` is `s = sigmoid(2 u)`, so that with `2 u = x (a + b x^2)` the derivative is
    `s + x s (1 - s) (a + 3 b x^2)`.
    """
    a = math.sqrt(8 / math.pi)
    b = 0.044715 * a
    x = at_least_float32(x)
    square = x * x
    s = ops.sigmoid(x * (a + b * square))
    return d_output * ops.cast(s + x * s * (1 - s) * (a + 3 * b * square), d_output.dtype)


def gelu_backward(x: Any, d_output: Any) -> Any:
    """Return the derivative of `x`: that of GELU is `P(x) + x p(x)`, with the density `p`."""
    x = at_least_float32(x)
    density = ops.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return d_output * ops.cast(0.5 * (1 + ops.erf(x / math.sqrt(2))) + x * density, d_output.dtype)


def _with_backward(name: str, formula: Callable, backward: Callable, x: Any, training: bool) -> Any:
    """Compute a formula whose backward pass computes its derivative from the input, in at least float32."""
    if not uses_kernel(name, x):
        return formula(x)

    @ops.custom_gradient
    def compute(x):
        def gradient(*arguments, upstream=None):
            d_output = arguments[0] if upstream is None else upstream
            # Recomputation in 16 bits takes more time (5 % of a ViT-B/16 step on a CPU) than it saves memory.
            (saved,) = (x,) if has_16_bits(x) else recompute_from(d_output, x)
            return in_one_pass(backward, saved, d_output)

        # Inference fuses GELU with the product before it, and its graph may become a file.
        return in_one_pass(formula, x) if training else formula(x), gradient

    return compute(x)


def as_rows(x: Any, training: bool) -> Any:
    """Return `[B, N, D]` as `[B*N, D]` where TensorFlow's graph optimizer then fuses product, bias and GELU.

    In training nothing is fused, as GELU's input is saved, and a TPU would copy the sequence to change its shape.
    """
    if training or keras.backend.backend() != "tensorflow":
        return x
    return ops.reshape(x, (-1, x.shape[-1]))


def as_sequence(rows: Any, x: Any) -> Any:
    """Return what `as_rows` made of `x` as `[B, N, ...]` again in 16 bits, so that the next product is not fused.

    oneDNN's fused products of variables do not use AMX.
    """
    if len(rows.shape) == len(x.shape) or not has_16_bits(rows):
        return rows
    return ops.reshape(rows, (*ops.shape(x)[:-1], rows.shape[-1]))
