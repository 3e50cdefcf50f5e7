"""Forward and backward passes written out, where differentiation op by op would keep and move more than is needed.

They are used during training only. Their values are those of the plain formulas; a processor whose memory is slower
than its arithmetic, as a TPU's is, moves less.
"""

import math

import keras
from keras import ops

from keras_vit.layers._later import later


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
            kept_weights, kept_output = later(d_output, weights, output)
            sums = ops.sum(_wide(d_output) * _wide(kept_output), axis=-1)  # [B, N, H]
            sums = ops.expand_dims(ops.transpose(sums, (0, 2, 1)), -1)  # [B, H, N, 1]
            d_weights = ops.einsum("bnhk,bmhk->bhnm", d_output, value)
            d_logits = ops.cast(_wide(kept_weights) * (_wide(d_weights) - sums), query.dtype)  # [B, H, N, M]
            d_query = ops.einsum("bhnm,bmhk->bnhk", d_logits, key)
            d_key = ops.einsum("bhnm,bnhk->bmhk", d_logits, query)
            d_value = ops.einsum("bhnm,bnhk->bmhk", kept_weights, d_output)
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
    rows = tuple(range(len(x.shape) - 1))

    @ops.custom_gradient
    def norm(x, scale, bias):
        mean, factor = _row_statistics(x, epsilon)

        def gradient(*arguments, upstream=None):
            d_output = _wide(arguments[0] if upstream is None else upstream)
            (kept_x,) = later(d_output, x)
            normalised = (_wide(kept_x) - mean) * factor
            d_normalised = d_output * scale
            along = ops.mean(d_normalised * normalised, axis=-1, keepdims=True)
            d_x = factor * (d_normalised - ops.mean(d_normalised, axis=-1, keepdims=True) - normalised * along)
            return ops.cast(d_x, x.dtype), ops.sum(d_output * normalised, axis=rows), ops.sum(d_output, axis=rows)

        return ops.cast((_wide(x) - mean) * factor * scale + bias, x.dtype), gradient

    return norm(x, scale, bias)


def norm_dense(x, scale, bias, kernel, offset, epsilon):
    """`layer_norm(x, scale, bias, epsilon) kernel + offset`, whose backward pass writes the derivative of `x` at once.

    The norm's derivative takes two means over each row of `g`, the derivative of the normed `x`: of `g scale` and of
    `g scale normalised`. With `y` the result and `d_y` its derivative, `g` is `d_y kernel^T`, so that they are sums
    over `d_y` and `y`, which are there before `g` is:

        sum(g scale) = sum(d_y (scale kernel)),    sum(g scale normalised) = sum(d_y (y - bias kernel - offset)).

    The product with `kernel^T` can then end in the derivative of `x`, instead of in a `g` that is stored and read
    again. In the same way the derivatives of `kernel`, `scale` and `bias` all come from `normalised^T d_y`.

    Args:
        x: Tensor `[B, N, D]`.
        scale: Tensor `[D]`, float32.
        bias: Tensor `[D]`, float32.
        kernel: Tensor `[D, F]`, of the dtype of `x`.
        offset: Tensor `[F]`, of the dtype of `x`.
        epsilon: Added to the variance.

    Returns:
        Tensor `[B, N, F]`.
    """
    width = x.shape[-1]

    @ops.custom_gradient
    def dense(x, scale, bias, kernel, offset):
        mean, factor = _row_statistics(x, epsilon)
        normed = ops.cast((_wide(x) - mean) * factor * scale + bias, x.dtype)
        y = ops.matmul(normed, kernel) + offset

        def gradient(*arguments, upstream=None):
            d_y = arguments[0] if upstream is None else upstream
            kept_x, kept_y, kept_kernel = later(d_y, x, y, kernel)
            wide_kernel, wide_d_y = _wide(kept_kernel), _wide(d_y)
            of_scale = ops.matmul(scale, wide_kernel)  # [F]
            constant = ops.matmul(bias, wide_kernel) + _wide(offset)  # [F], what y has from bias, offset
            level = ops.expand_dims(ops.matmul(wide_d_y, of_scale), -1) / width  # [B, N, 1]
            along = ops.sum(wide_d_y * _wide(kept_y), axis=-1) - ops.matmul(wide_d_y, constant)  # [B, N]
            along = ops.expand_dims(along, -1) / width
            normalised = (_wide(kept_x) - mean) * factor
            d_normed = _wide(ops.matmul(d_y, ops.transpose(kernel)))
            d_x = ops.cast(factor * (d_normed * scale - level - normalised * along), x.dtype)

            d_offset = ops.sum(wide_d_y, axis=(0, 1))  # [F]
            product = _wide(ops.einsum("bnd,bnf->df", ops.cast(normalised, x.dtype), d_y))
            d_kernel = scale[:, None] * product + bias[:, None] * d_offset
            d_scale = ops.sum(wide_kernel * product, axis=1)
            d_bias = ops.matmul(wide_kernel, d_offset)
            return d_x, d_scale, d_bias, ops.cast(d_kernel, kernel.dtype), ops.cast(d_offset, offset.dtype)

        return y, gradient

    return dense(x, scale, bias, kernel, offset)


@ops.custom_gradient
def gelu_tanh(x):
    """`layers.gelu_tanh` whose backward pass keeps `x` alone (in float32), a quarter of what differentiation op by op
    keeps.

    `(1 + tanh(u)) / 2 = sigmoid(2 u)`, so with `2 u = x (a + b x^2)` the value is `x s` and its derivative
    `s + x s (1 - s) (a + 3 b x^2)`, `s = sigmoid(2 u)`.
    """
    a = math.sqrt(8 / math.pi)
    b = 0.044715 * a

    def parts(x):
        wide = _wide(x)
        square = wide * wide
        return wide, square, ops.sigmoid(wide * (a + b * square))

    def gradient(*arguments, upstream=None):
        d_output = arguments[0] if upstream is None else upstream
        # Of 16-bit numbers, what is computed again costs more time (5 % of a ViT-B/16 step on a CPU) than it saves.
        (kept_x,) = (x,) if _has_16_bits(x) else later(d_output, x)
        wide, square, s = parts(kept_x)
        return d_output * ops.cast(s + wide * s * (1 - s) * (a + 3 * b * square), d_output.dtype)

    wide, _, s = parts(x)
    return ops.cast(wide * s, x.dtype), gradient


def project(x, kernel, bias=None):
    """Projects a sequence to queries, keys and values in one product.

    Their derivatives are put side by side again, so that one product makes the derivative of `x` of them: no partial
    sums are stored.

    Args:
        x: Tensor `[B, N, D]`.
        kernel: Tensor `[D, T, H, K]`: T projections.
        bias: Tensor `[T, H, K]`, or None.

    Returns:
        Tuple of T tensors `[B, N, H, K]`.
    """
    count = kernel.shape[1]

    def product(x, kernel):
        return ops.einsum("bnd,dthk->bnthk", x, kernel)

    def separate(together):
        return tuple(together[:, :, index] for index in range(count))

    def gradients(x, kernel, arguments, upstream):
        apart = arguments if upstream is None else (upstream,)
        apart = apart[0] if len(apart) == 1 else apart  # JAX gives one tuple, TensorFlow so many arguments
        together = ops.stack(apart, axis=2)  # [B, N, T, H, K]
        d_x = ops.einsum("bnthk,dthk->bnd", together, kernel)
        d_kernel = ops.einsum("bnd,bnthk->dthk", x, together)
        # Each sum from its own derivative: there it costs no pass over all three.
        return d_x, d_kernel, ops.stack([ops.sum(one, axis=(0, 1)) for one in apart])

    @ops.custom_gradient
    def biased(x, kernel, bias):
        return separate(product(x, kernel) + bias), lambda *a, upstream=None: gradients(x, kernel, a, upstream)

    @ops.custom_gradient
    def unbiased(x, kernel):
        return separate(product(x, kernel)), lambda *a, upstream=None: gradients(x, kernel, a, upstream)[:2]

    return unbiased(x, kernel) if bias is None else biased(x, kernel, bias)


def is_float(weight):
    """Tells whether a layer's weight is what it computes with, and not the integers of a quantised one."""
    return "float" in keras.backend.standardize_dtype(weight.dtype)


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
            (kept_x,) = later(d_output, x)
            centred = _wide(kept_x) - mean
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


def _row_statistics(x, epsilon):
    """Returns mean and 1 / deviation of each row of `x`, `[..., 1]`, in at least float32."""
    wide = _wide(x)
    mean = ops.mean(wide, axis=-1, keepdims=True)
    if _has_16_bits(x):
        variance = ops.maximum(ops.mean(wide * wide, axis=-1, keepdims=True) - mean * mean, 0.0)
    else:
        centred = wide - mean
        variance = ops.mean(centred * centred, axis=-1, keepdims=True)
    return mean, ops.rsqrt(variance + epsilon)


def _wide(x):
    return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))


def _has_16_bits(x):
    return keras.backend.standardize_dtype(x.dtype) in ("bfloat16", "float16")
