"""Arguments of Vision Transformers: their names, types, defaults and checks, and every fact that follows from them."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

import keras
import numpy as np

from keras_vit import _checks
from keras_vit.layers import get_activation, resnet
from keras_vit.layers.interpolation import METHODS
from keras_vit.models.config import Config, Size, plain
from keras_vit.models.geometry import Geometry

Pooling = Literal["token", "gap", "map"]
PositionEmbedding = Literal["learned", "learned2d", "sincos2d", "relative", "none"]
PositionsAt = Literal["input", "every_layer", "every_layer_shared"]
OutputProjection = Literal["bias", "no_bias", "none"]
PositionResizing = Literal["reference", "bilinear", "bicubic", "antialiased"]

POOLINGS = ("token", "gap", "map", None)
POSITION_EMBEDDINGS = ("learned", "learned2d", "sincos2d", "relative", "none")
POSITIONS_AT = ("input", "every_layer", "every_layer_shared")
OUTPUT_PROJECTIONS = ("bias", "no_bias", "none")


@dataclasses.dataclass(frozen=True)
class ViTConfig(Geometry):
    """Arguments of `keras_vit.VisionTransformer`.

    Args:
        patch_size: Patch edge in pixels, an integer or (height, width). For hybrids, in cells of the ResNet's map.
        hidden_size: Width `D` of the tokens.
        num_layers: Number of encoder blocks.
        num_heads: Number of attention heads per block. It must divide `hidden_size`, unless `head_dim` is given.
        mlp_dim: Width of the hidden layers of the MLPs.
        resnet_blocks: Number of units of each ResNet stage before the patches, `()` for the root alone, or None for a
            model without a ResNet.
        image_size: An integer, (height, width), or None for images of any size that is a multiple of the patch size.
            The position embeddings of a model for any size have `position_grid` and are resized in the model by
            `position_resizing`.
        classes: Number of classes.
        include_top: Whether the model ends in the classification head. Without it, the output is the pooled
            representation.
        pooling: `"token"` (class token), `"gap"` (mean of the patches), `"map"` (attention pooling) or None (all
            tokens).
        representation_size: Width of a dense layer with tanh before the head, or None for no such layer.
        classifier_activation: Activation of the output, such as `"softmax"`, computed in float32. None for logits.
        dropout_rate: Rate of the dropout after the position embeddings and in the blocks.
        attention_dropout_rate: Rate of the dropout of attention weights.
        drop_path_rate: Stochastic depth rate of the last block. The rates increase linearly from 0 at the first block.
        position_embedding: `"learned"`, `"learned2d"`, `"sincos2d"`, `"relative"` or `"none"` (appendix D.4).
        position_embedding_at: Where position embeddings are added: `"input"`, `"every_layer"` or
            `"every_layer_shared"` (appendix D.4).
        num_registers: Number of register tokens.
        activation: Activation of the MLPs: `"gelu_tanh"` (the reference), `"gelu"` (error function), `"quick_gelu"`, or
            a name that `keras.activations` knows.
        name: Name of the model.
        dtype: Dtype policy or its name, such as `"mixed_bfloat16"`. None for the global policy.
        channels: Number of channels of the images.
        class_token: Whether the model has a class token. None for a class token where `pooling` is `"token"` or None.
        distillation_token: Whether the model has DeiT's second token with a head of its own. The logits are then the
            mean of both heads, and the features the mean of both tokens. `"unused"` for the token without its head: it
            takes part in the attention only.
        layer_norm_epsilon: Epsilon of all layer norms.
        qkv_bias: Whether the projections to query, key and value have biases.
        layer_scale: Initial value of a learned scale of each residual branch, or None for no scale.
        norm_after_pooling: Whether the final norm follows the mean over the patches instead of preceding it (timm's
            `fc_norm`).
        resnet_numerics: Epsilons of a hybrid's ResNet: `"reference"` or `"timm"`.
        head_bias: Initial bias of the head.
        head_norm: Whether a batch norm without scale and offset precedes the head (MAE's linear probe).
        remat: `"blocks"` to recompute the activations of each block in the backward pass instead of saving them, or
            `"none"`.
        attention_chunk_size: Number of queries whose attention weights are computed at a time, for long sequences.
            None for all at once. See `keras_vit.layers.SelfAttention`.
        patch_norm: Whether a layer norm precedes the projection of the patches, and another follows it.
        head_dim: Width of an attention head, or None for `hidden_size / num_heads`.
        output_projection: Projection behind the heads of an attention: with a bias (`"bias"`), without one
            (`"no_bias"`), or `"none"` for the heads side by side, whose widths must then add up to `hidden_size`.
        pool_prefix_tokens: Whether the mean of `pooling="gap"` includes the class token and registers.
        position_grid: Grid (height, width) of the position table of a model for images of any size, in patches; None
            for the grid of 224-pixel images. None in a model with an `image_size`.
        position_resizing: Resizing of the position table to another grid: `"reference"` (bilinear between the corners),
            `"bilinear"`, `"bicubic"` or `"antialiased"` (bicubic). A model of a checkpoint has its project's.
        input_range: Values of black and white in the images, such as `(0, 255)`. A first layer then maps them to the
            values that the weights take: the model's `input_normalization`, [-1, 1] if that is not known. None for
            images that are normalized before.

    Raises:
        ValueError: If an argument is out of range, or two arguments exclude each other.

    Example:
    >>> config = ViTConfig(patch_size=16, image_size=384)
    >>> config.grid, config.num_tokens, config.class_token
    ((24, 24), 577, True)
    """

    COMMON: ClassVar[tuple[str, ...]] = (
        *Config.COMMON,
        *("patch_size", "hidden_size", "num_layers", "num_heads", "mlp_dim", "class_token"),
    )
    FREE: ClassVar[tuple[str, ...]] = (
        *Config.FREE,
        *("dropout_rate", "attention_dropout_rate", "drop_path_rate", "remat", "attention_chunk_size"),
        *("position_grid", "position_resizing"),
    )
    # Arguments of everything behind the encoder, which a model that is pre-trained without labels does not have.
    OF_HEAD: ClassVar[tuple[str, ...]] = (
        *("classes", "include_top", "pooling", "representation_size", "classifier_activation", "head_bias"),
        *("norm_after_pooling", "pool_prefix_tokens", "head_norm"),
    )

    patch_size: Size = 16
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    mlp_dim: int = 3072
    resnet_blocks: Sequence[int] | None = None
    image_size: Size | None = 224
    classes: int | None = 1000
    include_top: bool = True
    pooling: Pooling | None = "token"
    representation_size: int | None = None
    classifier_activation: str | None = None
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    position_embedding: PositionEmbedding = "learned"
    position_embedding_at: PositionsAt = "input"
    num_registers: int = 0
    activation: str = "gelu_tanh"
    name: str | None = dataclasses.field(default=None, compare=False)
    dtype: "str | keras.DTypePolicy | None" = dataclasses.field(default=None, compare=False)
    _: dataclasses.KW_ONLY
    channels: int = 3
    class_token: bool | None = None
    distillation_token: bool | Literal["unused"] = False
    layer_norm_epsilon: float = 1e-6
    qkv_bias: bool = True
    layer_scale: float | None = None
    norm_after_pooling: bool = False
    resnet_numerics: Literal["reference", "timm"] = "reference"
    head_bias: float = 0.0
    remat: Literal["none", "blocks"] = "none"
    attention_chunk_size: int | None = None
    patch_norm: bool = False
    head_dim: int | None = None
    output_projection: OutputProjection = "bias"
    pool_prefix_tokens: bool = False
    head_norm: bool = False
    position_grid: Size | None = None
    position_resizing: PositionResizing = dataclasses.field(default="reference", compare=False)
    input_range: tuple[float, float] | None = None

    def __post_init__(self):
        self._check_common()
        self._set("patch_size", plain(_checks.size_pair("patch_size", self.patch_size)))
        for name in ("hidden_size", "num_heads", "mlp_dim"):
            self._set(name, _checks.positive_int(name, getattr(self, name)))
        for name in ("num_layers", "num_registers"):
            self._set(name, _checks.positive_int(name, getattr(self, name), minimum=0))
        for name in ("representation_size", "attention_chunk_size", "head_dim"):
            if getattr(self, name) is not None:
                self._set(name, _checks.positive_int(name, getattr(self, name)))
        for name in ("dropout_rate", "attention_dropout_rate", "drop_path_rate"):
            self._set(name, _checks.rate(name, getattr(self, name)))
        self._set("layer_norm_epsilon", _checks.rate("layer_norm_epsilon", self.layer_norm_epsilon))
        if self.layer_scale is not None:
            self._set("layer_scale", _checks.finite_number("layer_scale", self.layer_scale, zero=True))
        self._check_heads()
        _checks.choice("position_embedding", self.position_embedding, POSITION_EMBEDDINGS)
        _checks.choice("position_embedding_at", self.position_embedding_at, POSITIONS_AT)
        _checks.choice("remat", self.remat, ("none", "blocks"))
        _checks.choice("distillation_token", self.distillation_token, (False, True, "unused"))
        get_activation(self.activation)
        if self.resnet_blocks is not None:
            units = _checks.sequence("resnet_blocks", self.resnet_blocks, "integers, the units of each stage")
            self._set("resnet_blocks", tuple(_checks.positive_int("resnet_blocks", n) for n in units))
        resnet.numerics(self.resnet_numerics)
        self._check_pooling()
        self._check_positions()
        self._check_attention()
        _ = self.grid  # the image must be a whole number of patches

    def _check_heads(self):
        _checks.choice("output_projection", self.output_projection, OUTPUT_PROJECTIONS)
        if self.head_dim is not None and self.head_dim * self.num_heads == self.hidden_size:
            self._set("head_dim", None)  # one way to say it, so that equal models have equal configurations
        if self.head_dim is None or self.pooling == "map":
            _checks.divisible("hidden_size", self.hidden_size, "num_heads", self.num_heads)
        if self.head_dim is not None and self.output_projection == "none":
            raise ValueError(
                "output_projection='none' needs num_heads * head_dim == hidden_size. Received: "
                f"num_heads={self.num_heads}, head_dim={self.head_dim}, hidden_size={self.hidden_size}."
            )

    def _check_pooling(self):
        if self.pooling in ("avg", "average", "mean", "max"):
            raise ValueError(
                f"`pooling` must be 'gap' for the mean of the patches. Received: pooling={self.pooling!r}."
            )
        _checks.choice("pooling", self.pooling, POOLINGS)
        if self.class_token is None:
            self._set("class_token", self.pooling in ("token", None))
        if self.pooling == "token" and not self.class_token:
            raise ValueError("pooling='token' needs the class token. Received: class_token=False. Use pooling='gap'.")
        if self.distillation_token and self.pooling != "token":
            raise ValueError(
                "`distillation_token` needs pooling='token': DeiT reads both tokens. "
                f"Received: pooling={self.pooling!r}."
            )
        if not self.include_top:
            self._set("head_norm", False)  # it belongs to the head
        if self.head_norm and (self.pooling is None or self.distillation_token):
            raise ValueError(
                "`head_norm` needs a head on one vector per image. Received: "
                f"pooling={self.pooling!r}, distillation_token={self.distillation_token!r}. Leave it off."
            )
        if self.norm_after_pooling and self.pooling != "gap":
            raise ValueError(
                f"`norm_after_pooling` needs pooling='gap'. Received: pooling={self.pooling!r}. "
                "Leave it off: the norm then precedes the pooling."
            )
        if self.pool_prefix_tokens and self.pooling != "gap":
            raise ValueError(
                f"`pool_prefix_tokens` needs pooling='gap'. Received: pooling={self.pooling!r}. Leave it off."
            )

    def _check_positions(self):
        _checks.choice("position_resizing", self.position_resizing, METHODS)
        if self.position_grid is not None:
            grid = plain(_checks.size_pair("position_grid", self.position_grid))
            self._set("position_grid", grid if self.image_size is None else None)
        if not self.has_position_table and self.position_embedding_at != "input":
            raise ValueError(
                "`position_embedding_at` applies to embeddings that are added to tokens. Received: "
                f"position_embedding={self.position_embedding!r} with position_embedding_at="
                f"{self.position_embedding_at!r}. Leave it at 'input'."
            )
        if self.position_embedding == "relative" and self.image_size is None:
            raise ValueError(
                "Relative position embeddings have one entry per offset and cannot be resized. Received: "
                "position_embedding='relative' with image_size=None. Give the `image_size`."
            )

    def _check_attention(self):
        if self.attention_chunk_size and (self.attention_dropout_rate or self.position_embedding == "relative"):
            raise ValueError(
                "`attention_chunk_size` excludes dropout of attention weights and relative positions. Received: "
                f"attention_chunk_size={self.attention_chunk_size}, attention_dropout_rate="
                f"{self.attention_dropout_rate}, position_embedding={self.position_embedding!r}. Leave it at None."
            )

    @property
    def num_output_tokens(self) -> int | None:
        """Number of first tokens that the output depends on behind the last block; None for all of them."""
        if self.pooling != "token" or self.position_embedding == "relative":
            return None
        return 2 if self.distillation_token is True else 1

    @property
    def has_position_table(self) -> bool:
        """Whether position embeddings are added to the tokens."""
        return self.position_embedding not in ("relative", "none")

    @property
    def num_position_entries(self) -> int:
        """Number of rows of a learned 1-D position table: prefix tokens and patches. 0 for other embeddings."""
        return self.num_prefix_tokens + self.grid[0] * self.grid[1] if self.position_embedding == "learned" else 0

    @property
    def attention_size(self) -> int:
        """Width of all heads of an attention together."""
        return self.hidden_size if self.head_dim is None else self.num_heads * self.head_dim

    @property
    def drop_path_rates(self) -> tuple[float, ...]:
        """Stochastic depth rate of each block."""
        return tuple(float(rate) for rate in np.linspace(0.0, self.drop_path_rate, self.num_layers))

    @property
    def num_features(self) -> int:
        """Width of the input of the head."""
        return self.hidden_size if self.representation_size is None else self.representation_size
