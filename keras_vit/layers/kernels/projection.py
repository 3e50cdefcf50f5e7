"""Several projections of one sequence as a single product, with a single product in the backward pass."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers.dense import EinsumDense
from keras_vit.layers.kernels import fused_attention
from keras_vit.layers.kernels.choice import uses_kernel


def project(x: Any, layers: Sequence[keras.layers.Layer]) -> tuple[Any, ...]:
    """Apply several projections from `[B, N, D]` to `[B, N, H, K]` to a sequence.

    In 16 bits, a single product computes all projections. In the backward pass, a single product computes the
    derivative of `x` from the stacked derivatives of the outputs. No partial sums are stored.
    """
    if len(layers) == 1 or not uses_kernel("project", x) or not all(_is_plain(layer, x) for layer in layers):
        return tuple(layer(x) for layer in layers)
    kernels = [ops.cast(layer.kernel, x.dtype) for layer in layers]  # [D, H, K] each
    biases = [None if layer.bias is None else ops.cast(layer.bias, x.dtype) for layer in layers]
    if all(bias is not None for bias in biases):
        return _project_with_bias(x, *kernels, *biases)
    outputs = zip(_project(x, *kernels), biases, strict=True)
    return tuple(output if bias is None else output + bias for output, bias in outputs)


def _is_plain(layer, x) -> bool:
    """Return whether a layer is exactly `EinsumDense`, without quantization or LoRA."""
    return (
        type(layer) in (EinsumDense, keras.layers.EinsumDense)
        and layer.quantization_mode is None
        and not layer.lora_enabled
        and layer.compute_dtype == keras.backend.standardize_dtype(x.dtype)
    )


@ops.custom_gradient
def _project(x, *kernels):
    def gradient(*arguments, upstream=None):
        return _gradients(x, kernels, _apart(arguments, upstream))

    return _products(x, kernels), gradient


@ops.custom_gradient
def _project_with_bias(x, *kernels_and_biases):
    count = len(kernels_and_biases) // 2
    kernels, biases = kernels_and_biases[:count], kernels_and_biases[count:]

    def gradient(*arguments, upstream=None):
        d_outputs = _apart(arguments, upstream)
        # Sum the derivative of each output separately: summing the stacked derivatives would take another pass.
        d_biases = [ops.sum(d_output, axis=(0, 1)) for d_output in d_outputs]
        return (*_gradients(x, kernels, d_outputs), *d_biases)

    return _products(x, kernels, biases), gradient


def _products(x, kernels, biases=None):
    """Return the product of `x` with each kernel, plus the kernel's bias."""
    together = ops.einsum("bnd,dchk->bnchk", x, ops.stack(kernels, axis=1))
    # Adding the biases before the split makes XLA store a matrix of biases on NVIDIA GPUs. Adding them after the split
    # makes a step on TPUs move 2% more memory.
    before = biases is not None and not (keras.backend.backend() == "jax" and fused_attention.has_cudnn())
    if before:
        together = together + ops.stack(biases)
    outputs = [together[:, :, index] for index in range(len(kernels))]
    if biases is not None and not before:
        outputs = [output + bias for output, bias in zip(outputs, biases, strict=True)]
    return tuple(outputs)


def _gradients(x, kernels, d_outputs):
    """Return the derivatives of `x` and of each kernel."""
    # JAX sums over axes in alphabetical order. With these letters, the alphabetical order is the order in memory, so
    # both products read the same array.
    together = ops.stack(d_outputs, axis=2)  # [B, N, C, H, K]
    d_x = ops.einsum("bnchk,dchk->bnd", together, ops.stack(kernels, axis=1))
    d_kernel = ops.einsum("bnd,bnchk->dchk", x, together)
    return (d_x, *(d_kernel[:, index] for index in range(len(kernels))))


def _apart(arguments, upstream):
    """Return the derivatives of the outputs as a sequence. JAX passes one tuple, TensorFlow separate arguments."""
    derivatives = arguments if upstream is None else (upstream,)
    return derivatives[0] if len(derivatives) == 1 else derivatives
