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


def group_norm(x, scale, bias, groups, epsilon):
    """Group normalisation, for the backward pass of which `x` and three numbers a group are kept.

    The derivative is linear in the upstream one and in `x`, with factors for each image and channel; these come from
    two sums over the positions.

    Args:
        x: Tensor `[B, H, W, C]`; the result has its dtype. Statistics are taken in at least float32.
        scale: Tensor `[C]`, float32.
        bias: Tensor `[C]`, float32.
        groups: Number of groups of channels.
        epsilon: Added to the variance.

    References:
        - [Group Normalization](https://arxiv.org/abs/1803.08494)
    """

    @ops.custom_gradient
    def norm(x, scale, bias):
        wide = _wide(x)
        mean, variance = group_moments(wide, groups)
        factor = ops.rsqrt(variance + epsilon)  # [B, 1, 1, C], as the mean

        def gradient(*arguments, upstream=None):
            d_output = _wide(arguments[0] if upstream is None else upstream)
            centred = _wide(x) - mean
            d_bias = ops.mean(d_output, axis=(1, 2), keepdims=True)  # [B, 1, 1, C], as the next three
            d_scale = ops.mean(d_output * centred, axis=(1, 2), keepdims=True) * factor
            along = over_groups(d_scale * scale, groups)
            offset = over_groups(d_bias * scale, groups)
            d_x = d_output * (factor * scale) - centred * (factor * factor * along) - factor * offset
            positions = ops.cast(ops.shape(x)[1] * ops.shape(x)[2], wide.dtype)
            sums = [ops.sum(one, axis=(0, 1, 2)) * positions for one in (d_scale, d_bias)]
            return ops.cast(d_x, x.dtype), *sums

        return ops.cast((wide - mean) * (factor * scale) + bias, x.dtype), gradient

    return norm(x, scale, bias)


def group_moments(x, groups):
    """Returns mean and variance of each group at its channels, `[B, 1, 1, C]`, of `x` `[B, H, W, C]`."""
    # Per channel first, then across the channels of a group: no pass over a five-dimensional view.
    mean = ops.mean(x, axis=(1, 2), keepdims=True)
    centred = x - mean
    variance = ops.mean(centred * centred, axis=(1, 2), keepdims=True)
    group_mean = over_groups(mean, groups)
    offset = mean - group_mean
    return group_mean, over_groups(variance + offset * offset, groups)


def over_groups(x, groups):
    """Replaces the channels of `[B, 1, 1, C]` by the mean of their group."""
    channels = x.shape[-1]
    grouped = ops.reshape(x, (-1, 1, 1, groups, channels // groups))
    grouped = ops.mean(grouped, axis=-1, keepdims=True)  # [B, 1, 1, G, 1]
    grouped = ops.broadcast_to(grouped, (ops.shape(x)[0], 1, 1, groups, channels // groups))
    return ops.reshape(grouped, (-1, 1, 1, channels))


def _wide(x):
    return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
