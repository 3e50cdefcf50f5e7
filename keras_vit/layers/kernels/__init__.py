"""Implementations of formulas that reduce memory or memory traffic during training.

A kernel takes the arguments of its plain formula in `keras_vit.layers.formulas` and computes the same values with the
same operations. Only the backward pass is written by hand. It saves fewer tensors or moves less memory than automatic
differentiation. Some kernels also use a different implementation, whose values are the same up to rounding in the
dtype. Attention processes long sequences in chunks, and uses cuDNN on NVIDIA GPUs with JAX. XLA compiles GELU and the
gate of SwiGLU when TensorFlow trains on CPUs. Layers always call the kernel, in training and inference. If
`choice.uses_kernel` returns False, the kernel calls the formula.
"""

from keras_vit.layers.kernels.choice import KERNELS, plain
from keras_vit.layers.kernels.chunked_attention import queries_per_chunk
from keras_vit.layers.kernels.feed_forward import feed_forward, swiglu
from keras_vit.layers.kernels.fused_attention import attention
from keras_vit.layers.kernels.gelu import as_rows, as_sequence, gelu, gelu_tanh
from keras_vit.layers.kernels.norm import group_norm, layer_norm

__all__ = [
    "KERNELS",
    "as_rows",
    "as_sequence",
    "attention",
    "feed_forward",
    "gelu",
    "gelu_tanh",
    "group_norm",
    "layer_norm",
    "plain",
    "queries_per_chunk",
    "swiglu",
]
