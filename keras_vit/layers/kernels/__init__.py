"""Implementations of formulas that save memory or memory traffic in training.

A kernel has the arguments of its plain formula in `keras_vit.layers.formulas` and computes the same values by the same
operations. Only its backward pass differs: it is written out, and so saves fewer tensors or moves less than
differentiation op by op. On NVIDIA GPUs under JAX, attention is cuDNN's, whose values are the same up to the rounding
of the dtype. In training with TensorFlow on processors, XLA computes GELU and the gate of SwiGLU, up to the same
rounding. A layer calls the kernel, in training and in inference alike; where `choice.uses_kernel` is False, the kernel
calls the formula.
"""

from keras_vit.layers.kernels.attention import attention
from keras_vit.layers.kernels.choice import KERNELS, plain
from keras_vit.layers.kernels.chunked_attention import queries_per_chunk
from keras_vit.layers.kernels.feed_forward import feed_forward, swiglu
from keras_vit.layers.kernels.gelu import as_rows, as_sequence, gelu, gelu_tanh
from keras_vit.layers.kernels.norm import group_norm, layer_norm
from keras_vit.layers.kernels.projection import project

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
    "project",
    "queries_per_chunk",
    "swiglu",
]
