"""Multi-head scaled dot-product attention."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers import kernels
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.kernels import chunked_attention
from keras_vit.layers.types import Shape


def attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    dropout: Callable[[Any], Any] | None = None,
    chunk_size: int | None = None,
) -> Any:
    """Compute `softmax(query key^T + bias) value`; the plain formula.

    Args:
        query: Tensor `[B, N, H, K]`, scaled already.
        key: Tensor `[B, M, H, K]`.
        value: Tensor `[B, M, H, K]`.
        bias: Tensor `[B, H, N, M]`, or None.
        dropout: Dropout of the weights, or None.
        chunk_size: Number of queries whose weights are computed at a time, or None for all.

    Returns:
        Tensor `[B, N, H, K]`.
    """
    if chunk_size is not None and chunked_attention.applies(query, chunk_size):
        return chunked_attention.attend(query, key, value, chunk_size)
    weights = attention_weights(query, key, bias)
    return ops.einsum("bhnm,bmhk->bnhk", weights if dropout is None else dropout(weights), value)


def attention_weights(query: Any, key: Any, bias: Any = None) -> Any:
    """Compute `softmax(query key^T + bias)`, `[B, H, N, M]`; see `attention`."""
    logits = ops.einsum("bnhk,bmhk->bhnm", query, key)
    return ops.softmax(logits if bias is None else logits + bias, axis=-1)


def project(x: Any, layers: Sequence[keras.layers.Layer]) -> tuple[Any, ...]:
    """Apply several projections to a sequence; the plain formula."""
    return tuple(layer(x) for layer in layers)


@keras.saving.register_keras_serializable(package="keras_vit")
class SelfAttention(CompositeLayer):
    """Multi-head dot-product attention of a sequence to itself, or to another one.

    Args:
        num_heads: Number of heads `H`. It must divide the width, unless `head_dim` is given.
        dropout_rate: Rate of the dropout of attention weights.
        use_bias: Whether query, key and value have biases.
        relative_positions: Number of tokens `L` of a model with learned 1-D relative position embeddings, or None.
            Each pair of tokens has the embedding of its offset. Its product with the query is added to the logits
            (paper, appendix D.4).
        chunk_size: Number of queries whose attention weights are computed at a time, so that memory grows with the
            number of tokens and not with its square. None for all at once. The result is the same but for rounding, and
            the backward pass recomputes the weights. It excludes dropout of weights and relative positions.
        head_dim: Width `K` of a head, or None for the width divided by `num_heads`.
        output_projection: `"bias"` or `"no_bias"` for a projection behind the heads with or without one, or `"none"`
            for the heads side by side.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `[B, N, D]`, the sequence of the queries.
        context: Tensor `[B, M, D]` for keys and values, or None for `x` itself.
        training: Whether dropout applies.

    Raises:
        ValueError: If the width of the heads is not that of the sequence where it must be, or `chunk_size` is
            combined with dropout of weights or relative positions.

    References:
        - [Attention Is All You Need](https://arxiv.org/abs/1706.03762)
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), appendix A

    Example:
    >>> import numpy as np
    >>> attend = SelfAttention(num_heads=2)
    >>> x = np.ones((1, 5, 8), "float32")
    >>> tuple(attend(x).shape), tuple(attend.scores(x).shape)
    ((1, 5, 8), (1, 2, 5, 5))
    """

    def __init__(
        self,
        num_heads: int,
        dropout_rate: float = 0.0,
        use_bias: bool = True,
        relative_positions: int | None = None,
        chunk_size: int | None = None,
        head_dim: int | None = None,
        output_projection: str = "bias",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_heads = _checks.positive_int("num_heads", num_heads)
        self.head_dim = None if head_dim is None else _checks.positive_int("head_dim", head_dim)
        self.output_projection = _checks.choice("output_projection", output_projection, ("bias", "no_bias", "none"))
        self.dropout_rate = _checks.rate("dropout_rate", dropout_rate)
        self.use_bias = use_bias
        self.relative_positions = relative_positions
        self.chunk_size = chunk_size
        if chunk_size is not None:
            _checks.positive_int("chunk_size", chunk_size)
            if self.dropout_rate or relative_positions is not None:
                raise ValueError(
                    "`chunk_size` excludes dropout of attention weights and relative positions. Received: "
                    f"chunk_size={chunk_size}, dropout_rate={dropout_rate}, relative_positions={relative_positions}. "
                    "Leave `chunk_size` at None."
                )

    def build(self, x_shape: Shape, context_shape: Shape | None = None) -> None:
        hidden_size = x_shape[-1]
        if self.head_dim is None or self.output_projection == "none":
            _checks.divisible("hidden_size", hidden_size, "num_heads", self.num_heads)
        self.head_size = self.head_dim or hidden_size // self.num_heads
        if self.output_projection == "none" and self.head_size * self.num_heads != hidden_size:
            raise ValueError(
                "output_projection='none' needs num_heads * head_dim equal to the width. Received: "
                f"num_heads={self.num_heads}, head_dim={self.head_dim}, width {hidden_size}."
            )
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
        if self.output_projection != "none":
            self.out = keras.layers.EinsumDense(
                "bnhk,hkd->bnd",
                output_shape=(None, hidden_size),
                bias_axes="d" if self.output_projection == "bias" else None,
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

    def call(self, x: Any, context: Any = None, training: bool = False) -> Any:
        query, key, value = self._project(x, context)  # [B, N, H, K], [B, M, H, K], [B, M, H, K]
        query = query * ops.cast(self.head_size**-0.5, query.dtype)
        drop = (lambda weights: self.dropout(weights, training=training)) if self.dropout_rate else None
        y = kernels.select(attention)(query, key, value, self._relative_logits(query), drop, self.chunk_size)
        if self.output_projection == "none":
            return ops.reshape(y, (-1, ops.shape(y)[1], self.num_heads * self.head_size))  # [B, N, D]
        return self.out(y)  # [B, N, D]

    def scores(self, x: Any, context: Any = None) -> Any:
        """Return the attention weights `[B, H, N, M]` after the softmax; see the call arguments."""
        if not self.built:
            self.build(x.shape)
        x = ops.cast(x, self.compute_dtype)
        query, key = self.query(x), self.key(x if context is None else ops.cast(context, self.compute_dtype))
        query = query * ops.cast(self.head_size**-0.5, query.dtype)
        return attention_weights(query, key, self._relative_logits(query))

    def _project(self, x, context):
        if context is None or context is x:
            return kernels.select(project)(x, (self.query, self.key, self.value))
        return (self.query(x), *kernels.select(project)(context, (self.key, self.value)))

    def _relative_logits(self, query):
        """Return the products of the query with the embedding of each pair's offset, `[B, H, N, N]`, or None."""
        if self.relative_positions is None:
            return None
        length, heads = self.relative_positions, self.num_heads
        embedding = ops.cast(self.relative_embedding, query.dtype)
        by_offset = ops.einsum("bnhk,rk->bhnr", query, embedding)  # [B, H, N, 2N-1], offset key - query + N - 1
        # Shift row n by n places to the left (Transformer-XL): pad each row by one and read rows that are one shorter.
        flat = ops.reshape(ops.pad(by_offset, ((0, 0), (0, 0), (0, 0), (0, 1))), (-1, heads, 2 * length * length))
        flat = ops.pad(flat, ((0, 0), (0, 0), (0, length - 1)))
        return ops.reshape(flat, (-1, heads, length + 1, 2 * length - 1))[:, :, :length, length - 1 :]  # [B, H, N, N]

    def compute_output_shape(self, x_shape: Shape, context_shape: Shape | None = None) -> Shape:
        return x_shape
