"""Attention whose backward pass sums over the width of an attention head instead of over all tokens."""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_vit.layers import formulas
from keras_vit.layers.kernels import chunked_attention, fused_attention
from keras_vit.layers.kernels.choice import uses_kernel
from keras_vit.layers.kernels.recompute import recompute_from
from keras_vit.layers.precision import at_least_float32


def attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    dropout: Callable[[Any], Any] | None = None,
    chunk_size: int | None = None,
) -> Any:
    """Compute `softmax(query key^T) value` for a scaled query, with the shapes of `formulas.attention`.

    For attention weights `w`, the derivative of the logits is `w (d_w - sum(d_w w))`. Because the output is the average
    of the values with weights `w`, `sum(d_w w)` over the tokens equals `sum(d_output * output)` over the width of an
    attention head. This sum does not depend on `d_w`, which therefore need not be stored.

    References:
        - [FlashAttention](https://arxiv.org/abs/2205.14135), appendix B.2
    """
    in_chunks = chunked_attention.queries_per_chunk(query.shape[1], chunk_size)
    if chunk_size is not None and in_chunks:
        return chunked_attention.attend(query, key, value, in_chunks)
    if bias is not None or dropout is not None or not uses_kernel("attention", query):
        return formulas.attention(query, key, value, bias, dropout)[0]
    if fused_attention.applies(query):
        return fused_attention.attend(query, key, value)
    return chunked_attention.attend(query, key, value, in_chunks) if in_chunks else _attend(query, key, value)


@ops.custom_gradient
def _attend(query, key, value):
    output, weights = formulas.attention(query, key, value)

    def gradient(*arguments, upstream=None):
        d_output = arguments[0] if upstream is None else upstream
        saved_weights, saved_output = recompute_from(d_output, weights, output)
        sums = ops.sum(at_least_float32(d_output) * at_least_float32(saved_output), axis=-1)  # [B, N, H]
        sums = ops.expand_dims(ops.transpose(sums, (0, 2, 1)), -1)  # [B, H, N, 1]
        d_weights = ops.einsum("bnhk,bmhk->bhnm", d_output, value)
        d_logits = at_least_float32(saved_weights) * (at_least_float32(d_weights) - sums)  # [B, H, N, M]
        d_logits = ops.cast(d_logits, query.dtype)
        d_query = ops.einsum("bhnm,bmhk->bnhk", d_logits, key)
        d_key = ops.einsum("bhnm,bnhk->bmhk", d_logits, query)
        d_value = ops.einsum("bhnm,bnhk->bmhk", saved_weights, d_output)
        return d_query, d_key, d_value

    return output, gradient
