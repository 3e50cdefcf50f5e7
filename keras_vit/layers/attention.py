"""Multi-head scaled dot-product attention."""

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers import chunked, gradients
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.dropout import Dropout


@keras.saving.register_keras_serializable(package="keras_vit")
class SelfAttention(CompositeLayer):
    """Multi-head dot-product attention of a sequence to itself, or to another one.

    Written as four contractions on `[B, N, H, K]` tensors, so that no
    transposed copy of a sequence is asked for.

    Args:
        num_heads: Number of heads `H`; must divide the width.
        dropout_rate: Dropout of single attention weights.
        use_bias: Whether query, key and value have biases; the output projection always has one.
        relative_positions: Number of tokens `L` for which 1-D relative position
            embeddings are learned, or None. Each pair of tokens has the
            embedding of its offset, whose product with the query is added
            to the logits (paper, appendix D.4).
        chunk_size: Number of queries whose weights are there at a time, so that memory grows with the number of tokens
            and not with its square; None for all at once. The result is the same but for rounding. The backward pass
            computes the weights again. Not together with dropout of weights or relative positions.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `[B, N, D]`, the queries' sequence.
        context: Tensor `[B, M, D]` for keys and values, or None for `x` itself.
        training: Whether dropout applies.
        return_attention_scores: Whether to return `(output, weights)` with the
            weights `[B, H, N, M]` after the softmax, before dropout.

    Raises:
        ValueError: If the width is not a multiple of `num_heads`, or chunks are asked for with what they cannot do.

    References:
        - [Attention Is All You Need](https://arxiv.org/abs/1706.03762)
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), appendix A
    """

    def __init__(self, num_heads, dropout_rate=0.0, use_bias=True, relative_positions=None, chunk_size=None, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = _checks.positive_int("num_heads", num_heads)
        self.dropout_rate = _checks.rate("dropout_rate", dropout_rate)
        self.use_bias = use_bias
        self.relative_positions = relative_positions
        self.chunk_size = chunk_size
        if chunk_size is not None:
            _checks.positive_int("chunk_size", chunk_size)
            if self.dropout_rate or relative_positions is not None:
                raise ValueError(
                    "Attention in chunks has neither dropout of attention weights nor relative positions. Received: "
                    f"chunk_size={chunk_size}, dropout_rate={dropout_rate}, relative_positions={relative_positions}. "
                    "Leave the chunk size at None."
                )

    def build(self, x_shape, context_shape=None):
        hidden_size = x_shape[-1]
        _checks.divisible("hidden_size", hidden_size, "num_heads", self.num_heads)
        self.head_size = hidden_size // self.num_heads
        heads_shape = (*x_shape[:-1], self.num_heads, self.head_size)
        for name in ("query", "key", "value"):
            projection = keras.layers.EinsumDense(
                "bnd,dhk->bnhk",
                output_shape=(None, self.num_heads, self.head_size),
                bias_axes="hk" if self.use_bias else None,
                kernel_initializer="glorot_uniform",
                dtype=self.dtype_policy,
                name=name,
            )
            projection.build(x_shape)
            setattr(self, name, projection)
        self.out = keras.layers.EinsumDense(
            "bnhk,hkd->bnd",
            output_shape=(None, hidden_size),
            bias_axes="d",
            kernel_initializer="glorot_uniform",
            dtype=self.dtype_policy,
            name="out",
        )
        self.out.build(heads_shape)
        if self.relative_positions is not None:
            self.relative_embedding = self.add_weight(
                name="relative_embedding",
                shape=(2 * self.relative_positions - 1, self.head_size),
                initializer=keras.initializers.RandomNormal(stddev=0.02),
            )
        self.dropout = Dropout(self.dropout_rate, dtype=self.dtype_policy, name="Dropout_0")
        self.dropout.build(None)
        super().build(x_shape)

    def call(self, x, context=None, training=False, return_attention_scores=False):
        query, key, value = self._project(x, context, training)  # [B, N, H, K], [B, M, H, K], [B, M, H, K]
        query = query * ops.cast(self.head_size**-0.5, x.dtype)
        if self._in_chunks(x.shape[1]) and not return_attention_scores:
            return self.out(chunked.attend(query, key, value, self.chunk_size))
        plain = self.relative_positions is None and not self.dropout_rate and not return_attention_scores
        if training and plain:
            return self.out(gradients.attend(query, key, value))
        logits = ops.einsum("bnhk,bmhk->bhnm", query, key)
        if self.relative_positions is not None:
            logits = logits + self._relative_logits(query)
        weights = ops.softmax(logits, axis=-1)  # [B, H, N, M]
        mixed = ops.einsum("bhnm,bmhk->bnhk", self.dropout(weights, training=training), value)
        output = self.out(mixed)  # [B, N, D]
        return (output, weights) if return_attention_scores else output

    def _project(self, x, context, training):
        query, key, value = layers = self.query, self.key, self.value
        if not training or not all(gradients.is_float(layer.kernel) for layer in layers):
            context = x if context is None else context
            return query(x), key(context), value(context)
        return self._together(x, *layers) if context is None else (query(x), *self._together(context, key, value))

    def _together(self, x, *layers):
        """Returns what each of some projections makes of a sequence."""
        kernel = ops.stack([ops.cast(layer.kernel, x.dtype) for layer in layers], axis=1)  # [D, T, H, K]
        bias = ops.stack([ops.cast(layer.bias, x.dtype) for layer in layers]) if self.use_bias else None  # [T, H, K]
        return gradients.project(x, kernel, bias)

    def _in_chunks(self, length):
        return self.chunk_size is not None and (length is None or length > self.chunk_size)

    def _relative_logits(self, query):
        """Returns `[B, H, N, N]`: the query's product with the embedding of each pair's offset."""
        length, heads = self.relative_positions, self.num_heads
        embedding = ops.cast(self.relative_embedding, query.dtype)
        by_offset = ops.einsum("bnhk,rk->bhnr", query, embedding)  # [B, H, N, 2N-1], offset key - query + N - 1
        # Row n is to be shifted n places to the left: in rows one shorter than the padded ones, it is.
        flat = ops.reshape(ops.pad(by_offset, ((0, 0), (0, 0), (0, 0), (0, 1))), (-1, heads, 2 * length * length))
        flat = ops.pad(flat, ((0, 0), (0, 0), (0, length - 1)))
        return ops.reshape(flat, (-1, heads, length + 1, 2 * length - 1))[:, :, :length, length - 1 :]  # [B, H, N, N]

    def compute_output_shape(self, x_shape, context_shape=None):
        return x_shape

    def compute_output_spec(self, x, context=None, training=False, return_attention_scores=False):
        output = keras.KerasTensor(x.shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        length = (x if context is None else context).shape[1]
        return output, keras.KerasTensor((x.shape[0], self.num_heads, x.shape[1], length), dtype=self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "dropout_rate": self.dropout_rate,
            "use_bias": self.use_bias,
            "relative_positions": self.relative_positions,
            "chunk_size": self.chunk_size,
        }
