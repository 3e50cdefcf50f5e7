"""Pooling of the tokens `[B, N, D]` to one vector per image `[B, D]`."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.layers.base import BaseLayer, CompositeLayer, Shape
from keras_vit.layers.normalization import NORMS
from keras_vit.util import checks

__all__ = ["MAPHead", "PatchMeanPooling", "TokenPooling"]


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenPooling(BaseLayer):
    """Selection of one token: `[B, N, D]` to `[B, D]`.

    Args:
        index: Position of the token in the sequence, 0 for the class token.

    Example:
    >>> tuple(TokenPooling()(np.ones((3, 5, 8), "float32")).shape)
    (3, 8)
    """

    def __init__(self, index: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.index = checks.positive_int("index", index, minimum=0)

    def call(self, x: Any) -> Any:
        return x[:, self.index]

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], input_shape[-1])


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchMeanPooling(BaseLayer):
    """Mean of the patch tokens: `[B, N, D]` to `[B, D]`.

    Args:
        num_prefix_tokens: Number of tokens before the patches (class token, registers). The mean excludes them.

    Example:
    >>> tuple(PatchMeanPooling(num_prefix_tokens=1)(np.ones((3, 5, 8), "float32")).shape)
    (3, 8)
    """

    def __init__(self, num_prefix_tokens: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_prefix_tokens = checks.positive_int("num_prefix_tokens", num_prefix_tokens, minimum=0)

    def call(self, x: Any) -> Any:
        return ops.mean(x[:, self.num_prefix_tokens :] if self.num_prefix_tokens else x, axis=1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], input_shape[-1])


@keras.saving.register_keras_serializable(package="keras_vit")
class MAPHead(CompositeLayer):
    """Multi-head attention pooling: a learned probe attends to all tokens.

    Args:
        attention: Attention layer, such as `SelfAttention`.
        mlp: Layer after the attention, such as `MlpBlock`, with input and output `[B, 1, D]`.
        layer_norm_epsilon: Epsilon of the norm before the MLP.
        norm_type: Type of this norm, `"layer"` or `"rms"`.

    Call arguments:
        x: Tensor `[B, N, D]`; the result is `[B, D]`.
        return_attention_scores: Whether to return `(output, scores)`; see `SelfAttention`.
        edit_scores: See `SelfAttention`.

    References:
        - [Set Transformer](https://arxiv.org/abs/1810.00825)
        - [Scaling Vision Transformers](https://arxiv.org/abs/2106.04560), section 3

    Example:
    >>> from keras_vit.layers import MlpBlock, SelfAttention
    >>> tuple(MAPHead(SelfAttention(num_heads=2), MlpBlock(32))(np.ones((3, 5, 8), "float32")).shape)
    (3, 8)
    """

    def __init__(
        self,
        attention: keras.layers.Layer,
        mlp: keras.layers.Layer,
        layer_norm_epsilon: float = 1e-6,
        norm_type: str = "layer",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.layer_norm_epsilon = float(layer_norm_epsilon)
        self.norm_type = checks.choice("norm_type", norm_type, tuple(NORMS))
        self.attention = checks.instance("attention", attention, keras.layers.Layer, "pass SelfAttention(12)")
        self.norm = NORMS[norm_type](layer_norm_epsilon, dtype=self.dtype_policy, name="LayerNorm_0")
        self.mlp = checks.instance("mlp", mlp, keras.layers.Layer, "pass a layer such as MlpBlock(3072)")

    def build(self, input_shape: Shape) -> None:
        batch, _, hidden_size = input_shape
        pooled_shape = (batch, 1, hidden_size)
        self.probe = self.add_weight(name="probe", shape=(1, 1, hidden_size), initializer="glorot_uniform")
        for child in (self.attention, self.norm, self.mlp):
            if not child.built:
                child.build(pooled_shape)
        super().build(input_shape)

    def call(
        self, x: Any, return_attention_scores: bool = False, edit_scores: Callable[[Any], Any] | None = None
    ) -> Any:
        probe = ops.broadcast_to(ops.cast(self.probe, x.dtype), (ops.shape(x)[0], 1, x.shape[-1]))  # [B, 1, D]
        y = self.attention(
            probe, context=x, return_attention_scores=return_attention_scores, edit_scores=edit_scores
        )  # [B, 1, D]
        pooled, scores = y if return_attention_scores else (y, None)
        pooled = ops.squeeze(pooled + self.mlp(self.norm(pooled)), axis=1)  # [B, D]
        return (pooled, scores) if return_attention_scores else pooled
