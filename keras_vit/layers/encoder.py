"""Block of the transformer's encoder."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.layers.base import BaseLayer, CompositeLayer, Shape
from keras_vit.layers.dropout import Dropout, StochasticDepth, rematerialized
from keras_vit.layers.normalization import NORMS
from keras_vit.util import checks

__all__ = ["EncoderBlock", "LayerScale"]


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerScale(BaseLayer):
    """Multiplication of each channel by a learned factor.

    Args:
        initial_value: Initial value of all factors.

    References:
        - [Going deeper with Image Transformers](https://arxiv.org/abs/2103.17239)

    Example:
    >>> np.array(LayerScale(0.5)(np.ones((1, 2), "float32"))).tolist()
    [[0.5, 0.5]]
    """

    def __init__(self, initial_value: float = 1e-5, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.initial_value = float(initial_value)

    def build(self, input_shape: Shape) -> None:
        self.gamma = self.add_weight(
            name="gamma", shape=(input_shape[-1],), initializer=keras.initializers.Constant(self.initial_value)
        )
        super().build(input_shape)

    def call(self, x: Any) -> Any:
        return x * ops.cast(self.gamma, x.dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class EncoderBlock(CompositeLayer):
    """Pre-norm transformer block: attention and MLP, each with a residual connection.

    Args:
        attention: Layer of the first branch, such as `SelfAttention`, with input and output `[B, N, D]`. It receives
            `training`, and the call arguments below only if they are passed.
        mlp: Layer of the second branch, such as `MlpBlock`, with input and output `[B, N, D]`.
        dropout_rate: Rate of the dropout after the attention.
        drop_path_rate: Stochastic depth rate of both residual branches.
        layer_norm_epsilon: Epsilon of both norms.
        layer_scale: Initial value of the `LayerScale` of both branches, or None to omit `LayerScale`.
        norm_type: Type of both norms, `"layer"` or `"rms"`.

    Call arguments:
        x: Tensor `[B, N, D]`.
        context: Tensor `[B, M, D]` of the tokens to attend to, or None for `x`.
        training: Whether dropout and stochastic depth apply.
        return_attention_scores: Whether to return `(output, scores)`; see `SelfAttention`.
        **attention_arguments: Further call arguments of the attention layer, such as `edit_scores`.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), equations 2 and 3

    Example:
    >>> from keras_vit.layers import MlpBlock, SelfAttention
    >>> block = EncoderBlock(SelfAttention(num_heads=2), MlpBlock(32))
    >>> x = np.ones((1, 5, 8), "float32")
    >>> tuple(block(x).shape), tuple(block(x[:, :1], context=x).shape)
    ((1, 5, 8), (1, 1, 8))
    """

    is_block = True
    # Function of the arguments that runs in place of the block, such as a scan over several blocks.
    replacement: Callable[..., Any] | None = None

    def __init__(
        self,
        attention: keras.layers.Layer,
        mlp: keras.layers.Layer,
        dropout_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        layer_norm_epsilon: float = 1e-6,
        layer_scale: float | None = None,
        norm_type: str = "layer",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.dropout_rate = checks.rate("dropout_rate", dropout_rate)
        self.drop_path_rate = checks.rate("drop_path_rate", drop_path_rate)
        self.layer_norm_epsilon = float(layer_norm_epsilon)
        self.layer_scale = layer_scale
        self.norm_type = checks.choice("norm_type", norm_type, tuple(NORMS))
        self.input_spec = keras.layers.InputSpec(ndim=3)
        self.norm_0 = NORMS[norm_type](layer_norm_epsilon, dtype=self.dtype_policy, name="LayerNorm_0")
        self.attention = checks.instance("attention", attention, keras.layers.Layer, "pass SelfAttention(12)")
        self.norm_1 = NORMS[norm_type](layer_norm_epsilon, dtype=self.dtype_policy, name="LayerNorm_1")
        self.mlp = checks.instance("mlp", mlp, keras.layers.Layer, "pass a layer such as MlpBlock(3072)")

    def build(self, x_shape: Shape) -> None:
        # Create the dropout layers here instead of in the constructor, so that the path of their state includes the
        # block.
        shared: dict[str, Any] = {"dtype": self.dtype_policy}
        self.scale_0 = self._scale("LayerScale_0")
        self.scale_1 = self._scale("LayerScale_1")
        self.dropout = Dropout(self.dropout_rate, name="Dropout_0", **shared)
        self.drop_path_0 = StochasticDepth(self.drop_path_rate, name="StochasticDepth_0", **shared)
        self.drop_path_1 = StochasticDepth(self.drop_path_rate, name="StochasticDepth_1", **shared)
        for child in (
            *(self.norm_0, self.attention, self.norm_1, self.mlp, self.scale_0, self.scale_1),
            *(self.dropout, self.drop_path_0, self.drop_path_1),
        ):
            if not child.built:
                child.build(x_shape)
        super().build(x_shape)

    def _scale(self, name):
        if self.layer_scale is None:
            return keras.layers.Identity(dtype=self.dtype_policy, name=name)
        return LayerScale(self.layer_scale, dtype=self.dtype_policy, name=name)

    def call(
        self,
        x: Any,
        context: Any = None,
        training: bool = False,
        return_attention_scores: bool = False,
        **attention_arguments: Any,
    ) -> Any:
        if self.replacement is not None:
            return self.replacement(x, training=training, **attention_arguments)
        if context is not None:
            attention_arguments["context"] = self.norm_0(context)
        if return_attention_scores:
            attention_arguments["return_attention_scores"] = True
        y = self.attention(self.norm_0(x), training=training, **attention_arguments)  # [B, N, D]
        y, scores = y if return_attention_scores else (y, None)
        y = self.dropout(y, training=training)
        x = x + self.drop_path_0(self.scale_0(y), training=training)

        y = self.mlp(self.norm_1(x), training=training)
        x = x + self.drop_path_1(self.scale_1(y), training=training)  # [B, N, D]
        return (x, scores) if return_attention_scores else x

    def rematerialized_call(self, layer_call: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return `layer_call`, rematerialized with the same dropout if a `keras.RematScope` applies during training."""
        recomputed = super().rematerialized_call(layer_call, *args, **kwargs) is not layer_call
        if not recomputed or not kwargs.get("training") or self.replacement is not None:
            return layer_call
        return rematerialized(self, layer_call)

    def compute_output_spec(
        self, x: Any, context: Any = None, return_attention_scores: bool = False, **arguments: Any
    ) -> Any:
        if return_attention_scores:
            return self.attention.compute_output_spec(x, context, return_attention_scores=True, **arguments)
        return keras.KerasTensor(x.shape, self.compute_dtype)
