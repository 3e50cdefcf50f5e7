"""Forward and backward passes written out, where differentiation op by op would keep and move more than is needed.

They are used during training only. Their values are those of the plain formulas; a processor whose memory is slower
than its arithmetic, as a TPU's is, moves less.
"""

import keras
from keras import ops


def attend(query, key, value):
    """`softmax(query key^T) value`.

    The derivative of the logits is `w (d_w - sum(d_w w))`. The sum is that of `d_output * output`, too, as the output
    is what `w` averages: it is taken over a head's width instead of over all tokens, before `d_w` is there, so that
    `d_w` need not be stored and read again.

    Args:
        query: Tensor `[B, N, H, K]`, scaled already.
        key: Tensor `[B, M, H, K]`.
        value: Tensor `[B, M, H, K]`.

    Returns:
        Tensor `[B, N, H, K]`.

    References:
        - [FlashAttention](https://arxiv.org/abs/2205.14135), appendix B.2
    """

    @ops.custom_gradient
    def attention(query, key, value):
        weights = ops.softmax(ops.einsum("bnhk,bmhk->bhnm", query, key), axis=-1)
        output = ops.einsum("bhnm,bmhk->bnhk", weights, value)

        def gradient(*arguments, upstream=None):
            d_output = arguments[0] if upstream is None else upstream
            sums = ops.sum(_wide(d_output) * _wide(output), axis=-1)  # [B, N, H]
            sums = ops.expand_dims(ops.transpose(sums, (0, 2, 1)), -1)  # [B, H, N, 1]
            d_weights = ops.einsum("bnhk,bmhk->bhnm", d_output, value)
            d_logits = ops.cast(_wide(weights) * (_wide(d_weights) - sums), query.dtype)  # [B, H, N, M]
            d_query = ops.einsum("bhnm,bmhk->bnhk", d_logits, key)
            d_key = ops.einsum("bhnm,bnhk->bmhk", d_logits, query)
            d_value = ops.einsum("bhnm,bnhk->bmhk", weights, d_output)
            return d_query, d_key, d_value

        return output, gradient

    return attention(query, key, value)


def layer_norm(x, scale, bias, epsilon):
    """`(x - mean) / sqrt(variance + epsilon) * scale + bias` over the last axis, for the backward pass of which `x` and
    two numbers a row are kept.

    Statistics are taken in at least float32. Those of 16-bit numbers are taken in one pass, as `E[x^2] - E[x]^2`: what
    cancels there is far below the precision of such numbers.

    Args:
        x: Tensor `[..., D]`; the result has its dtype.
        scale: Tensor `[D]`, float32.
        bias: Tensor `[D]`, float32.
        epsilon: Added to the variance.

    References:
        - [Layer Normalization](https://arxiv.org/abs/1607.06450)
    """
    one_pass = keras.backend.standardize_dtype(x.dtype) in ("bfloat16", "float16")
    rows = tuple(range(len(x.shape) - 1))

    @ops.custom_gradient
    def norm(x, scale, bias):
        wide = _wide(x)
        mean = ops.mean(wide, axis=-1, keepdims=True)
        if one_pass:
            variance = ops.maximum(ops.mean(wide * wide, axis=-1, keepdims=True) - mean * mean, 0.0)
        else:
            centred = wide - mean
            variance = ops.mean(centred * centred, axis=-1, keepdims=True)
        factor = ops.rsqrt(variance + epsilon)  # [..., 1]

        def gradient(*arguments, upstream=None):
            d_output = _wide(arguments[0] if upstream is None else upstream)
            normalised = (_wide(x) - mean) * factor
            d_normalised = d_output * scale
            along = ops.mean(d_normalised * normalised, axis=-1, keepdims=True)
            d_x = factor * (d_normalised - ops.mean(d_normalised, axis=-1, keepdims=True) - normalised * along)
            return ops.cast(d_x, x.dtype), ops.sum(d_output * normalised, axis=rows), ops.sum(d_output, axis=rows)

        return ops.cast((wide - mean) * factor * scale + bias, x.dtype), gradient

    return norm(x, scale, bias)


def _wide(x):
    return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
