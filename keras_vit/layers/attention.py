"""Multi-head scaled dot-product attention."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.layers import formulas, kernels
from keras_vit.layers.base import CompositeLayer, Shape
from keras_vit.layers.dense import EinsumDense
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.normalization import NORMS
from keras_vit.util import checks

__all__ = ["SelfAttention"]


def one_or_three(name: str, value: Any) -> bool | tuple[bool, bool, bool]:
    """Return the bools for query, key and value, or a single bool if all three are equal."""
    flags = value if isinstance(value, (tuple, list)) else (value,) * 3
    if len(flags) != 3 or not all(isinstance(flag, bool) for flag in flags):
        raise ValueError(f"`{name}` must be a bool, or three for query, key and value. Received: {name}={value!r}.")
    query, key, value = flags
    return query if query == key == value else (query, key, value)


def rotate(x: Any, rotation: Any) -> Any:
    """Rotate `[B, N, H, K]` by the first `N` angles of `RotaryPositions`. Channel i is paired with channel i + K/2."""
    cosines, sines = ops.unstack(ops.expand_dims(rotation[:, : ops.shape(x)[1]], 2), 2)  # [N, 1, K]
    first, second = ops.split(x, 2, axis=-1)
    return x * cosines + ops.concatenate([-second, first], axis=-1) * sines


@keras.saving.register_keras_serializable(package="keras_vit")
class SelfAttention(CompositeLayer):
    """Multi-head dot-product attention of a sequence to itself or to another sequence.

    Args:
        num_heads: Number of attention heads `H`, which must divide the width unless `head_dim` is given.
        dropout_rate: Rate of the dropout of the attention weights.
        use_bias: Whether the projections to query, key and value have biases: one bool for all, or three bools.
        relative_positions: Sequence length `L` for learned 1-D relative position embeddings, or None to disable the
            embeddings. There is one embedding for each offset between two tokens. The product of the query and the
            embedding is added to the logits (appendix D.4 of the paper).
        chunk_size: Number of queries that are processed at a time, so that memory grows linearly with the number of
            tokens instead of quadratically. The output is the same up to rounding. The backward pass recomputes the
            attention weights. Cannot be combined with dropout of the attention weights or relative positions. With
            None, sequences of up to 1,024 queries are processed at once, and longer sequences in chunks of up to 256
            queries where possible. Pass at least the number of queries to process all queries at once.
        head_dim: Width `K` of an attention head, or None for the width `D` divided by `num_heads`.
        output_projection: `"bias"` or `"no_bias"` to project the concatenated attention heads with or without a bias.
            `"none"` returns the concatenated heads without a projection.
        qk_norm: Type of the norm of each attention head's query and key, `"layer"` or `"rms"`, or None to omit the
            norms.
        layer_norm_epsilon: Epsilon of the query and key norms.

    Call arguments:
        x: Tensor `[B, N, D]` for the queries.
        context: Tensor `[B, M, D]` for the keys and values, or None for `x`.
        training: Whether dropout applies.
        return_attention_scores: Whether to return `(output, scores)`. The scores `[B, H, N, M]` are the attention
            weights after the softmax and before dropout.
        edit_scores: Function that receives the scores and returns the attention weights to use in their place, or None.
        rotation: Cosines and sines `[2, M, K]` from `RotaryPositions` for all tokens, starting with the queries. None
            disables rotation.

    Raises:
        ValueError: If `num_heads` does not divide the width and `head_dim` is None. If `chunk_size` is combined with
            dropout of the attention weights or relative positions. If the length of a sequence is not
            `relative_positions`.

    References:
        - [Attention Is All You Need](https://arxiv.org/abs/1706.03762)
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), appendix A

    Example:
    >>> attend = SelfAttention(num_heads=2)
    >>> x = np.ones((1, 5, 8), "float32")
    >>> output, scores = attend(x, return_attention_scores=True)
    >>> tuple(output.shape), tuple(scores.shape)
    ((1, 5, 8), (1, 2, 5, 5))
    """

    def __init__(
        self,
        num_heads: int,
        dropout_rate: float = 0.0,
        use_bias: bool | tuple[bool, bool, bool] = True,
        relative_positions: int | None = None,
        chunk_size: int | None = None,
        head_dim: int | None = None,
        output_projection: str = "bias",
        qk_norm: str | None = None,
        layer_norm_epsilon: float = 1e-6,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_heads = checks.positive_int("num_heads", num_heads)
        self.head_dim = None if head_dim is None else checks.positive_int("head_dim", head_dim)
        self.output_projection = checks.choice("output_projection", output_projection, ("bias", "no_bias", "none"))
        self.dropout_rate = checks.rate("dropout_rate", dropout_rate)
        self.use_bias = one_or_three("use_bias", use_bias)
        self.qk_norm = checks.choice("qk_norm", qk_norm, (None, *NORMS))
        self.layer_norm_epsilon = float(layer_norm_epsilon)
        self.relative_positions = relative_positions
        self.chunk_size = chunk_size
        if chunk_size is not None:
            checks.positive_int("chunk_size", chunk_size)
            if self.dropout_rate or relative_positions is not None:
                raise ValueError(
                    "`chunk_size` excludes dropout of attention weights and relative positions. Received: "
                    f"chunk_size={chunk_size}, dropout_rate={dropout_rate}, relative_positions={relative_positions}. "
                    "Leave `chunk_size` at None."
                )

    def build(self, x_shape: Shape) -> None:
        hidden_size = x_shape[-1]
        if self.head_dim is None or self.output_projection == "none":
            checks.divisible("hidden_size", hidden_size, "num_heads", self.num_heads)
        head_dim = self.head_dim or hidden_size // self.num_heads
        if self.output_projection == "none" and head_dim * self.num_heads != hidden_size:
            raise ValueError(
                "output_projection='none' needs num_heads * head_dim equal to the width. Received: "
                f"num_heads={self.num_heads}, head_dim={self.head_dim}, width {hidden_size}."
            )
        heads_shape = (*x_shape[:-1], self.num_heads, head_dim)
        biases = (self.use_bias,) * 3 if isinstance(self.use_bias, bool) else self.use_bias
        for name, use_bias in zip(("query", "key", "value"), biases, strict=True):
            shape = (None, self.num_heads, head_dim)
            self._add_projection(name, "bnd,dhk->bnhk", shape, "hk" if use_bias else None, x_shape)
        if self.qk_norm is not None:
            for name in ("query_norm", "key_norm"):
                norm = NORMS[self.qk_norm](self.layer_norm_epsilon, dtype=self.dtype_policy, name=name)
                norm.build(heads_shape)
                setattr(self, name, norm)
        if self.output_projection != "none":
            bias = "d" if self.output_projection == "bias" else None
            self._add_projection("out", "bnhk,hkd->bnd", (None, hidden_size), bias, heads_shape)
        if self.relative_positions is not None:
            self.relative_embedding = self.add_weight(
                name="relative_embedding",
                shape=(2 * self.relative_positions - 1, head_dim),
                initializer=keras.initializers.RandomNormal(stddev=0.02),
            )
        self.dropout = Dropout(self.dropout_rate, dtype=self.dtype_policy, name="Dropout_0")
        self.dropout.build(None)
        super().build(x_shape)

    def _add_projection(self, name, equation, output_shape, bias_axes, input_shape):
        shared = {"kernel_initializer": "glorot_uniform", "dtype": self.dtype_policy, "name": name}
        layer = EinsumDense(equation, output_shape=output_shape, bias_axes=bias_axes, **shared)
        layer.build(input_shape)
        setattr(self, name, layer)

    def call(
        self,
        x: Any,
        context: Any = None,
        training: bool = False,
        return_attention_scores: bool = False,
        edit_scores: Callable[[Any], Any] | None = None,
        rotation: Any = None,
    ) -> Any:
        context = x if context is None else context
        query, key, value = self.query(x), self.key(context), self.value(context)  # [B, N, H, K], [B, M, H, K], same
        if self.qk_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        query = query * ops.cast(query.shape[-1] ** -0.5, query.dtype)
        bias, scores = self._relative_logits(query, key), None

        def weights_of(scores):
            return self.dropout(scores if edit_scores is None else edit_scores(scores), training=training)

        if return_attention_scores or edit_scores is not None:  # a kernel does not return the scores
            y, scores = formulas.attention(query, key, value, bias, weights_of)
        else:
            y = kernels.attention(query, key, value, bias, weights_of if self.dropout_rate else None, self.chunk_size)
        if self.output_projection == "none":
            y = ops.reshape(y, (-1, ops.shape(y)[1], x.shape[-1]))  # [B, N, D]
        else:
            y = self.out(y)  # [B, N, D]
        return (y, scores) if return_attention_scores else y

    def _relative_logits(self, query, key):
        """Return the product of each query and the embedding of its offset to each key, `[B, H, L, L]`, or None."""
        if self.relative_positions is None:
            return None
        length, heads = self.relative_positions, self.num_heads
        if not {query.shape[1], key.shape[1]} <= {length, None}:
            raise ValueError(
                f"Sequences must have relative_positions={length} tokens. Received: {query.shape[1]}, {key.shape[1]}."
            )
        embedding = ops.cast(self.relative_embedding, query.dtype)
        by_offset = ops.einsum("bnhk,rk->bhnr", query, embedding)  # [B, H, L, 2L-1], offset key - query + L - 1
        # Shift row n to the right by n (Transformer-XL): append one element to each row, then read the elements in
        # rows that are shorter by one.
        flat = ops.reshape(ops.pad(by_offset, ((0, 0), (0, 0), (0, 0), (0, 1))), (-1, heads, 2 * length * length))
        flat = ops.pad(flat, ((0, 0), (0, 0), (0, length - 1)))
        return ops.reshape(flat, (-1, heads, length + 1, 2 * length - 1))[:, :, :length, length - 1 :]  # [B, H, L, L]

    def compute_output_spec(
        self, x: Any, context: Any = None, training: bool = False, return_attention_scores: bool = False, **_: Any
    ) -> Any:
        output = keras.KerasTensor(x.shape, self.compute_dtype)
        length = (x if context is None else context).shape[1]
        scores = keras.KerasTensor((x.shape[0], self.num_heads, x.shape[1], length), self.compute_dtype)
        return (output, scores) if return_attention_scores else output
