"""The transformer encoder's block."""

import contextlib
import contextvars

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.dropout import Dropout, hold
from keras_vit.layers.mlp import MlpBlock
from keras_vit.layers.normalization import LayerNorm
from keras_vit.layers.stochastic_depth import StochasticDepth

_read = contextvars.ContextVar("read", default=(None, None))  # a block, and how many of its tokens are read


@contextlib.contextmanager
def reading(block, num_tokens):
    """Makes an `EncoderBlock` return its first tokens only, `[B, num_tokens, D]`, as long as the context lasts.

    Of the other tokens it computes what these attend to: keys and values.
    """
    token = _read.set((block, num_tokens))
    try:
        yield
    finally:
        _read.reset(token)


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerScale(keras.layers.Layer):
    """Multiplies each channel with a learned factor.

    Args:
        initial_value: Initial factor.
        **kwargs: Arguments of `keras.layers.Layer`.

    References:
        - [Going deeper with Image Transformers](https://arxiv.org/abs/2103.17239)
    """

    def __init__(self, initial_value=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.initial_value = float(initial_value)

    def build(self, input_shape):
        self.gamma = self.add_weight(
            name="gamma", shape=(input_shape[-1],), initializer=keras.initializers.Constant(self.initial_value)
        )
        super().build(input_shape)

    def call(self, x):
        return x * ops.cast(self.gamma, x.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "initial_value": self.initial_value}


@keras.saving.register_keras_serializable(package="keras_vit")
class EncoderBlock(CompositeLayer):
    """Pre-norm transformer block: attention and MLP, each with a residual connection.

    Args:
        num_heads: Number of attention heads; must divide the width.
        mlp_dim: Width of the MLP's hidden layer.
        dropout_rate: Dropout after attention and in the MLP.
        attention_dropout_rate: Dropout of single attention weights.
        drop_path_rate: Stochastic depth of both residual branches.
        activation: Name of the MLP's activation, see `keras_vit.layers.get_activation`.
        layer_norm_epsilon: Epsilon of both layer norms.
        qkv_bias: Whether query, key and value have biases.
        layer_scale: Initial value of a learned scale of each branch, or None for no scale.
        relative_positions: See `SelfAttention`.
        remat: Whether the backward pass recomputes the block's activations instead of keeping them.
        attention_chunk_size: See `SelfAttention`, `chunk_size`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `[B, N, D]`; the result has the same shape.
        training: Whether dropout and stochastic depth apply.
        return_attention_scores: Whether to return `(output, weights)` with weights `[B, H, N, N]`.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), equations 2 and 3
    """

    def __init__(
        self,
        num_heads,
        mlp_dim,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        drop_path_rate=0.0,
        activation="gelu_tanh",
        layer_norm_epsilon=1e-6,
        qkv_bias=True,
        layer_scale=None,
        relative_positions=None,
        remat=False,
        attention_chunk_size=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = _checks.positive_int("num_heads", num_heads)
        self.mlp_dim = _checks.positive_int("mlp_dim", mlp_dim)
        self.dropout_rate = _checks.rate("dropout_rate", dropout_rate)
        self.attention_dropout_rate = _checks.rate("attention_dropout_rate", attention_dropout_rate)
        self.drop_path_rate = _checks.rate("drop_path_rate", drop_path_rate)
        self.activation = activation
        self.layer_norm_epsilon = float(layer_norm_epsilon)
        self.qkv_bias = qkv_bias
        self.layer_scale = layer_scale
        self.relative_positions = relative_positions
        self.remat = bool(remat)
        self.attention_chunk_size = attention_chunk_size
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, input_shape):
        _checks.divisible("hidden_size", input_shape[-1], "num_heads", self.num_heads)
        shared = {"dtype": self.dtype_policy}
        self.norm_0 = LayerNorm(self.layer_norm_epsilon, name="LayerNorm_0", **shared)
        self.attention = SelfAttention(
            self.num_heads,
            self.attention_dropout_rate,
            self.qkv_bias,
            self.relative_positions,
            self.attention_chunk_size,
            name="MultiHeadDotProductAttention_0",
            **shared,
        )
        self.norm_1 = LayerNorm(self.layer_norm_epsilon, name="LayerNorm_1", **shared)
        self.mlp = MlpBlock(self.mlp_dim, self.dropout_rate, self.activation, name="MlpBlock_0", **shared)
        children = [self.norm_0, self.attention, self.norm_1, self.mlp]
        if self.layer_scale is not None:
            self.scale_0 = LayerScale(self.layer_scale, name="LayerScale_0", **shared)
            self.scale_1 = LayerScale(self.layer_scale, name="LayerScale_1", **shared)
            children += [self.scale_0, self.scale_1]
        self.dropout = Dropout(self.dropout_rate, name="Dropout_0", **shared)
        self.drop_path_0 = StochasticDepth(self.drop_path_rate, name="StochasticDepth_0", **shared)
        self.drop_path_1 = StochasticDepth(self.drop_path_rate, name="StochasticDepth_1", **shared)
        for child in [*children, self.dropout, self.drop_path_0, self.drop_path_1]:
            child.build(input_shape)
        self._random_layers = [
            *(self.attention.dropout, self.dropout, self.drop_path_0),
            *(self.mlp.dropout_0, self.mlp.dropout_1, self.drop_path_1),
        ]
        super().build(input_shape)

    def call(self, x, training=False, return_attention_scores=False):
        block, num_tokens = _read.get()  # now: what is recomputed runs when the context is gone
        num_tokens = num_tokens if block is self else None
        if not (self.remat and training) or return_attention_scores:
            return self._forward(x, num_tokens, training, return_attention_scores)
        # Both runs must drop the same values: seeds are drawn here, outside of what is run twice.
        generators = [layer.seed_generator for layer in self._random_layers if layer.rate > 0]
        seeds = [generator.next() for generator in generators]

        def forward(x):
            with hold(generators, seeds):
                return self._forward(x, num_tokens, training)

        return keras.remat(forward)(x)

    def _forward(self, x, num_tokens, training, return_attention_scores=False):
        y, context = self.norm_0(x, training=training), None
        if num_tokens is not None:
            x, y, context = x[:, :num_tokens], y[:, :num_tokens], y
        y = self.attention(y, context, training=training, return_attention_scores=return_attention_scores)
        y, weights = y if return_attention_scores else (y, None)
        y = self.dropout(y, training=training)
        if self.layer_scale is not None:
            y = self.scale_0(y)
        x = x + self.drop_path_0(y, training=training)  # [B, N, D]

        # In training both share a backward pass.
        y = self.mlp(x, training=training, norm=self.norm_1) if training else self.mlp(self.norm_1(x))
        if self.layer_scale is not None:
            y = self.scale_1(y)
        x = x + self.drop_path_1(y, training=training)  # [B, N, D]
        return (x, weights) if return_attention_scores else x

    def compute_output_shape(self, input_shape):
        return input_shape

    def compute_output_spec(self, x, training=False, return_attention_scores=False):
        output = keras.KerasTensor(x.shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        batch, length, _ = x.shape
        return output, keras.KerasTensor((batch, self.num_heads, length, length), dtype=self.compute_dtype)

    def get_config(self):
        names = (
            "num_heads",
            "mlp_dim",
            "dropout_rate",
            "attention_dropout_rate",
            "drop_path_rate",
            "activation",
            "layer_norm_epsilon",
            "qkv_bias",
            "layer_scale",
            "relative_positions",
            "remat",
            "attention_chunk_size",
        )
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
