"""Attention whose memory grows linearly, not quadratically, with the number of tokens."""

from typing import Any

import keras
from keras import ops

LONG = 1024  # above this number of queries, chunks take no more time and save most of the memory of a training step
# Queries per chunk by default. On a CPU, no size between 128 and 1,024 was faster, and larger chunks take more memory.
LARGEST = 256


def queries_per_chunk(queries: int | None, chunk_size: int | None) -> int | None:
    """Return the number of queries per chunk, or None for one chunk. With `chunk_size=None`, `queries` decides."""
    if chunk_size is None:
        if queries is None or queries <= LONG:
            return None
        return -(-queries // -(-queries // LARGEST))  # chunks of equal size with minimal padding
    return chunk_size if queries is None or queries > chunk_size else None


def attend(query: Any, key: Any, value: Any, chunk_size: int) -> Any:
    """Compute `softmax(query key^T) value` for `chunk_size` queries at a time.

    A chunk contains entire rows of attention weights, so that the softmax is the same as without chunks. The backward
    pass recomputes the weights of one chunk at a time instead of saving all weights.

    References:
        - [Self-attention Does Not Need O(n^2) Memory](https://arxiv.org/abs/2112.05682)
    """
    length = ops.shape(query)[1]
    count = -(-length // chunk_size)
    padding = count * chunk_size - length  # rows of zeros; `join` drops their output

    def split(x):
        x = ops.pad(x, ((0, 0), (0, padding), (0, 0), (0, 0)))
        x = ops.reshape(x, (-1, count, chunk_size, *x.shape[2:]))
        return ops.transpose(x, (1, 0, 3, 2, 4))  # [chunks, B, H, C, K]

    def join(x):
        x = ops.transpose(x, (1, 0, 3, 2, 4))  # [B, chunks, C, H, K]
        return ops.reshape(x, (-1, count * chunk_size, *x.shape[3:]))[:, :length]

    @ops.custom_gradient
    def attention(query, key, value):
        queries = split(query)
        keys, values = (ops.transpose(x, (0, 2, 1, 3)) for x in (key, value))  # [B, H, M, K]

        def forward(state, chunk):
            (query,) = chunk
            return state, ops.matmul(_weights(query, keys), values)

        def backward(sums, chunk):
            """Compute derivatives of the loss (`d_`); `p` are the attention weights and `s` the logits."""
            query, d_output = chunk
            p = _weights(query, keys)
            d_p = ops.matmul(d_output, _transposed(values))  # [B, H, C, M]
            d_s = p * (d_p - ops.sum(d_p * p, axis=-1, keepdims=True))
            d_keys = ops.matmul(_transposed(d_s), query)
            d_values = ops.matmul(_transposed(p), d_output)
            sums = [total + ops.cast(part, total.dtype) for total, part in zip(sums, (d_keys, d_values), strict=True)]
            return sums, ops.matmul(d_s, keys)

        def gradient(*arguments, upstream=None):
            upstream = arguments[0] if upstream is None else upstream
            # Sum over the chunks in at least float32, as a single product over all rows would.
            wide = keras.backend.result_type(key.dtype, "float32")
            zeros = [ops.zeros_like(keys, dtype=wide), ops.zeros_like(values, dtype=wide)]
            sums, d_queries = _scan(backward, zeros, [queries, split(upstream)])
            d_key, d_value = (ops.cast(ops.transpose(x, (0, 2, 1, 3)), key.dtype) for x in sums)
            return join(d_queries), d_key, d_value

        _, outputs = _scan(forward, [], [queries])
        return join(outputs), gradient

    return attention(query, key, value)


def _weights(query, keys):
    return ops.softmax(ops.matmul(query, _transposed(keys)), axis=-1)  # [B, H, C, M]


def _transposed(x):
    return ops.swapaxes(x, -1, -2)


def _scan(function, state, sequences):
    """Call `function(state, elements)` for each element of the sequences. Return state and outputs.

    An output has the shape and dtype of the first sequence's elements.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.scan(lambda state, elements: function(state, elements), state, sequences)
    # Keras' loops let TensorFlow run up to ten loop bodies in parallel, which would use as much memory as attention
    # without chunks.
    import tensorflow as tf

    first = sequences[0]
    outputs = tf.TensorArray(first.dtype, size=tf.shape(first)[0], element_shape=first.shape[1:])

    def body(index, state, outputs):
        new, output = function(state, [sequence[index] for sequence in sequences])
        for after, before in zip(new, state, strict=True):
            after.set_shape(before.shape)
        return index + 1, new, outputs.write(index, output)

    _, state, outputs = tf.while_loop(
        lambda index, state, outputs: index < tf.shape(first)[0], body, (0, state, outputs), parallel_iterations=1
    )
    stacked = outputs.stack()
    stacked.set_shape(first.shape)
    return state, stacked
