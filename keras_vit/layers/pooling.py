"""Pooling layers, from the tokens `[B, N, D]` to one vector per image `[B, D]`."""

from typing import Any

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.mlp import MlpBlock
from keras_vit.layers.normalization import LayerNorm
from keras_vit.layers.types import Shape


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenPooling(BaseLayer):
    """One token of the sequence: `[B, N, D]` to `[B, D]`.

    Args:
        index: Position of the token, 0 for the class token.
        **kwargs: Arguments of `keras.layers.Layer`.

    Example:
    >>> import numpy as np
    >>> tuple(TokenPooling()(np.ones((3, 5, 8), "float32")).shape)
    (3, 8)
    """

    def __init__(self, index: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.index = _checks.positive_int("index", index, minimum=0)

    def call(self, x: Any) -> Any:
        return x[:, self.index]

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], input_shape[-1])


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchMeanPooling(BaseLayer):
    """Mean of the tokens of the patches: `[B, N, D]` to `[B, D]`.

    Args:
        num_prefix_tokens: Number of tokens before the patches (class token, registers), which are left out.
        **kwargs: Arguments of `keras.layers.Layer`.

    Example:
    >>> import numpy as np
    >>> tuple(PatchMeanPooling(num_prefix_tokens=1)(np.ones((3, 5, 8), "float32")).shape)
    (3, 8)
    """

    def __init__(self, num_prefix_tokens: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_prefix_tokens = _checks.positive_int("num_prefix_tokens", num_prefix_tokens, minimum=0)

    def call(self, x: Any) -> Any:
        return ops.mean(x[:, self.num_prefix_tokens :] if self.num_prefix_tokens else x, axis=1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], input_shape[-1])


@keras.saving.register_keras_serializable(package="keras_vit")
class MAPHead(CompositeLayer):
    """Multi-head attention pooling: a learned probe attends to all tokens.

    Args:
        num_heads: Number of attention heads.
        mlp_dim: Width of the hidden layer of the MLP behind the attention.
        activation: Name of the MLP's activation.
        layer_norm_epsilon: Epsilon of the layer norm before the MLP.
        **kwargs: Further arguments of `LayerNorm`, and those of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `[B, N, D]`; the result is `[B, D]`.

    References:
        - [Set Transformer](https://arxiv.org/abs/1810.00825)
        - [Scaling Vision Transformers](https://arxiv.org/abs/2106.04560), section 3

    Example:
    >>> import numpy as np
    >>> tuple(MAPHead(num_heads=2, mlp_dim=32)(np.ones((3, 5, 8), "float32")).shape)
    (3, 8)
    """

    parts = {LayerNorm: {"epsilon": "layer_norm_epsilon"}}

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        activation: str = "gelu_tanh",
        layer_norm_epsilon: float = 1e-6,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_heads = _checks.positive_int("num_heads", num_heads)
        self.mlp_dim = _checks.positive_int("mlp_dim", mlp_dim)
        self.activation = activation
        self.layer_norm_epsilon = float(layer_norm_epsilon)

    def build(self, input_shape: Shape) -> None:
        batch, _, hidden_size = input_shape
        pooled_shape = (batch, 1, hidden_size)
        self.probe = self.add_weight(name="probe", shape=(1, 1, hidden_size), initializer="glorot_uniform")
        shared = {"dtype": self.dtype_policy}
        self.attention = SelfAttention(self.num_heads, name="MultiHeadDotProductAttention_0", **shared)
        self.norm = self.part(LayerNorm, "LayerNorm_0")
        self.mlp = MlpBlock(self.mlp_dim, activation=self.activation, name="MlpBlock_0", **shared)
        for child in (self.attention, self.norm, self.mlp):
            child.build(pooled_shape)
        super().build(input_shape)

    def call(self, x: Any) -> Any:
        pooled = self.attention(self._probe(x), context=x)  # [B, 1, D]
        pooled = pooled + self.mlp(self.norm(pooled))
        return ops.squeeze(pooled, axis=1)  # [B, D]

    def scores(self, x: Any) -> Any:
        """Return the attention weights of the probe, `[B, H, 1, N]`, for the tokens `[B, N, D]`."""
        if not self.built:
            self.build(x.shape)
        return self.attention.scores(self._probe(x), context=x)

    def _probe(self, x):
        probe = ops.cast(self.probe, x.dtype)
        return ops.broadcast_to(probe, (ops.shape(x)[0], 1, x.shape[-1]))  # [B, 1, D]

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], input_shape[-1])
