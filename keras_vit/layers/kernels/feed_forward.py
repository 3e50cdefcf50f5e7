"""Activation and second dense layer of a feed-forward block, without saving the activation's output."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.layers import formulas
from keras_vit.layers.dense import Dense
from keras_vit.layers.formulas import at_least_float32
from keras_vit.layers.kernels import gelu
from keras_vit.layers.kernels.choice import uses_kernel
from keras_vit.layers.kernels.one_pass import in_one_pass, is_compiled, recompute_from


def feed_forward(activation: str, inputs: tuple[Any, ...], layer: keras.layers.Layer, training: bool) -> Any:
    """Apply an activation and a dense layer, `[B, N, M]` to `[B, N, D]`.

    The backward pass recomputes the output of the activation together with the derivatives of the inputs.

    Args:
        activation: `"gelu_tanh"`, `"gelu"` or `"swiglu"`.
        inputs: Inputs of the activation: one tensor, or both factors (gate and up) of SwiGLU.
        layer: The dense layer.
        training: Whether there is a backward pass.

    Returns:
        The output of the dense layer, or None if the caller must call the activation and the layer.
    """
    if not (training and activation in _CHAINS and uses_kernel("feed_forward") and is_compiled(inputs[0])):
        return None
    if not _is_plain(layer, inputs[0]):
        return None
    import tensorflow as tf

    formula, backward = _CHAINS[activation]

    @ops.custom_gradient
    def product(kernel, *inputs):
        def gradient(d_output):
            d_output = _rows(d_output)  # [B*N, D]
            d_y = ops.reshape(tf.matmul(d_output, kernel, transpose_b=True), ops.shape(inputs[0]))  # [B, N, M]
            y, *d_inputs = in_one_pass(backward, d_y, *recompute_from(d_y, *inputs))
            return tf.matmul(_rows(y), d_output, transpose_a=True), *d_inputs  # [M, D], [B, N, M] each

        return ops.matmul(in_one_pass(formula, *inputs), kernel), gradient

    y = product(ops.cast(layer.kernel, inputs[0].dtype), *inputs)
    return y if layer.bias is None else ops.add(y, ops.cast(layer.bias, y.dtype))


def _is_plain(layer, x) -> bool:
    """Return whether a layer is exactly `Dense`, without activation, quantization or LoRA."""
    return (
        type(layer) in (Dense, keras.layers.Dense)
        and layer.activation in (None, keras.activations.linear)
        and layer.quantization_mode is None
        and not layer.lora_enabled
        and layer.compute_dtype == keras.backend.standardize_dtype(x.dtype)
    )


def _rows(x):
    return ops.reshape(x, (-1, x.shape[-1]))


def swiglu(gate: Any, up: Any) -> Any:
    """Compute `silu(gate) * up`."""
    return ops.silu(gate) * up


def _swiglu_backward(d_y, gate, up):
    wide, d_wide = at_least_float32(gate), at_least_float32(d_y)
    s = ops.sigmoid(wide)
    d_gate = d_wide * at_least_float32(up) * (s + wide * s * (1 - s))
    return swiglu(gate, up), ops.cast(d_gate, gate.dtype), ops.cast(d_wide * wide * s, up.dtype)


def _gelu_backward(d_y, x):
    return formulas.gelu(x), gelu.gelu_backward(x, d_y)


def _gelu_tanh_backward(d_y, x):
    return formulas.gelu_tanh(x), gelu.gelu_tanh_backward(x, d_y)


# Formula and backward function of each activation. The backward function takes the derivative of the output and the
# inputs. It returns the output and the derivatives of the inputs.
_CHAINS: dict[str, tuple[Callable, Callable]] = {
    "gelu": (formulas.gelu, _gelu_backward),
    "gelu_tanh": (formulas.gelu_tanh, _gelu_tanh_backward),
    "swiglu": (swiglu, _swiglu_backward),
}
