"""GELU in its tanh form, whose backward pass saves only its input, and in inference its fusion with the product."""

import math
from typing import Any

import keras
from keras import ops

from keras_vit.layers import formulas
from keras_vit.layers.kernels.choice import uses_kernel
from keras_vit.layers.kernels.recompute import recompute_from
from keras_vit.layers.precision import at_least_float32, has_16_bits


def gelu_tanh(x: Any) -> Any:
    """Compute `x (1 + tanh(u)) / 2` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`.

    `(1 + tanh(u)) / 2` is `s = sigmoid(2 u)`, so that with `2 u = x (a + b x^2)` the derivative is
    `s + x s (1 - s) (a + 3 b x^2)`.
    """
    if not uses_kernel("gelu_tanh", x):
        return formulas.gelu_tanh(x)
    a = math.sqrt(8 / math.pi)
    b = 0.044715 * a

    @ops.custom_gradient
    def gelu(x):
        def gradient(*arguments, upstream=None):
            d_output = arguments[0] if upstream is None else upstream
            # Recomputation in 16 bits takes more time (5 % of a ViT-B/16 step on a CPU) than it saves memory.
            (saved,) = (x,) if has_16_bits(x) else recompute_from(d_output, x)
            wide = at_least_float32(saved)
            square = wide * wide
            s = ops.sigmoid(wide * (a + b * square))
            return d_output * ops.cast(s + wide * s * (1 - s) * (a + 3 * b * square), d_output.dtype)

        return formulas.gelu_tanh(x), gradient

    return gelu(x)


def as_rows(x: Any, training: bool) -> Any:
    """Return `[B, N, D]` as `[B*N, D]` where TensorFlow's graph optimizer then fuses product, bias and GELU.

    In training nothing is fused, as GELU's input is saved, and a TPU would copy the sequence to change its shape.
    """
    if training or keras.backend.backend() != "tensorflow":
        return x
    return ops.reshape(x, (-1, x.shape[-1]))
