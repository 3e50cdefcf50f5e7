"""Attention in chunks of queries for long sequences, and with cuDNN on NVIDIA GPUs."""

from collections.abc import Callable
from typing import Any

from keras_vit.layers import formulas
from keras_vit.layers.kernels import chunked_attention, fused_attention
from keras_vit.layers.kernels.choice import uses_kernel


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
        if fused_attention.applies(query):
            return fused_attention.attend(query, key, value)
        if in_chunks:
            return chunked_attention.attend(query, key, value, in_chunks)
    return formulas.attention(query, key, value, bias, dropout)[0]
