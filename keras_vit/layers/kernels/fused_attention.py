"""Attention as one operation of cuDNN for JAX on NVIDIA GPUs, in chunks for long sequences, or by the formula."""

import functools
from collections.abc import Callable
from typing import Any, Literal

import keras

from keras_vit.layers import formulas
from keras_vit.layers.formulas import has_16_bits
from keras_vit.layers.kernels import chunked_attention
from keras_vit.layers.kernels.choice import uses_kernel

_LARGEST_HEAD = 128  # Hopper supports 256, but XLA's products are as fast at that width


def attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    dropout: Callable[[Any], Any] | None = None,
    chunk_size: int | None = None,
) -> Any:
    """Compute `softmax(query key^T) value` for a scaled query, with the shapes of `formulas.attention`.

    Short sequences without cuDNN use the formula.
    """
    in_chunks = chunked_attention.queries_per_chunk(query.shape[1], chunk_size)
    if chunk_size is not None and in_chunks:
        return chunked_attention.attend(query, key, value, in_chunks)
    if bias is None and dropout is None and uses_kernel("attention"):
        if applies(query):
            return attend(query, key, value)
        if in_chunks:
            return chunked_attention.attend(query, key, value, in_chunks)
    return formulas.attention(query, key, value, bias, dropout)[0]


def applies(query: Any) -> bool:
    """Return whether cuDNN supports attention for queries `[B, N, H, K]` without bias and dropout."""
    size = query.shape[-1]
    return (
        keras.backend.backend() == "jax"
        and has_16_bits(query)  # cuDNN's attention does not support float32
        and size % 8 == 0
        and size <= _LARGEST_HEAD
        and has_cudnn()
    )


def attend(query: Any, key: Any, value: Any, implementation: Literal["cudnn", "xla"] = "cudnn") -> Any:
    """Compute `softmax(query key^T) value`. Logits and softmax are computed in float32 and not stored.

    References:
        - [FlashAttention-2](https://arxiv.org/abs/2307.08691)
    """
    import jax
    import jax.numpy as jnp

    batch, count, length = query.shape[0], query.shape[1], key.shape[1]
    # JAX differentiates cuDNN's attention only for even lengths, so pad odd lengths. Keys beyond `lengths` are masked.
    query, key, value = (jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0))) for x in (query, key, value))
    lengths = jnp.full(batch, length, "int32") if length % 2 else None
    output = jax.nn.dot_product_attention(
        query, key, value, scale=1.0, key_value_seq_lengths=lengths, implementation=implementation
    )
    return output[:, :count]


@functools.cache
def has_cudnn() -> bool:
    """Return whether JAX's default device is an NVIDIA GPU."""
    import jax
    from jax.extend import backend

    return jax.default_backend() == "gpu" and "cuda" in backend.get_backend().platform_version
