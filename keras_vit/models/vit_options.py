"""Options of Vision Transformers: names, types, defaults, documentation and checks."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import keras

from keras_vit.layers import get_activation, position
from keras_vit.layers.attention import one_or_three
from keras_vit.layers.rope import ratio
from keras_vit.models.config import Config, Options, Published, Size, plain, registered_name
from keras_vit.util import checks
from keras_vit.zoo.variants import ViTVariant

STANDARD = {"block": "keras_vit>EncoderBlock", "attention": "keras_vit>SelfAttention"}  # registered names


@dataclasses.dataclass(frozen=True)
class ViTOptions(Options):
    """Options of `keras_vit.VisionTransformer` and of the constructors of its variants, such as `ViT_B16`.

    Args:
        pooling: `"token"` (class token), `"gap"` (mean of the patches), `"token+gap"` (concatenation of both), `"map"`
            (attention pooling) or None (all tokens).
        representation_size: Width of a dense layer with tanh before the head, or None to omit the layer.
        dropout_rate: Rate of the dropout after the position embeddings and in the blocks.
        attention_dropout_rate: Rate of the dropout of the attention weights.
        drop_path_rate: Stochastic depth rate of the last block. The rates increase linearly from 0 at the first block.
        position_embedding: `"learned"`, `"learned2d"`, `"sincos2d"`, `"relative"`, `"none"` (see appendix D.4 of the
            paper) or `"rope2d"` (DINOv3's rotation of queries and keys; see `keras_vit.layers.RotaryPositions`).
        position_embedding_at: Where position embeddings are added: `"input"`, `"every_layer"` or
            `"every_layer_shared"` (see appendix D.4 of the paper).
        num_registers: Number of register tokens.
        activation: Activation of the MLPs: `"gelu_tanh"` (as in the reference), `"gelu"` (exact, with the error
            function), `"quick_gelu"`, or a name that `keras.activations.get` accepts.
        class_token: Whether the model has a class token. None adds a class token if `pooling` is `"token"`,
            `"token+gap"` or None.
        distillation_token: Whether the model has DeiT's distillation token with a second head. The logits are then the
            mean of the logits of both heads, and the features are the mean of both tokens. `"unused"` adds the token
            without its head, so that it only takes part in the attention.
        norm: Type of all norms: `"layer"`, or `"rms"` for a norm without mean and bias.
        layer_norm_epsilon: Epsilon of all norms.
        qkv_bias: Whether the projections to query, key and value have biases: one bool for all, or three bools.
        layer_scale: Initial value of the learned scale of each residual branch, or None to omit the scale.
        norm_after_pooling: Whether the final norm follows the mean over the patches instead of preceding it (timm's
            `fc_norm`).
        resnet_numerics: Epsilons of a hybrid's ResNet: `"reference"` or `"timm"`.
        head_norm: Whether a batch norm without scale and offset precedes the head (MAE's linear probe).
        remat: `"blocks"` to recompute the activations of each block in the backward pass instead of saving them, or
            `"none"`.
        attention_chunk_size: Number of queries that attention processes at a time. None chooses a number based on the
            sequence length. See `keras_vit.layers.SelfAttention`.
        patch_norm: Whether the projection of the patches has a layer norm before and after it.
        head_dim: Width of an attention head, or None for `hidden_size / num_heads`.
        output_projection: Projection of the concatenated attention heads: with a bias (`"bias"`), without a bias
            (`"no_bias"`), or no projection (`"none"`). Without a projection, `num_heads * head_dim` must equal
            `hidden_size`.
        pool_prefix_tokens: Whether the mean of `pooling="gap"` includes the class token and registers.
        position_grid: Grid (height, width) of the position table in a model for images of any size. The table is
            resized to the grid of the images. None for the grid of 224-pixel images. Always None if `image_size` is
            set.
        position_resizing: Method for resizing the position table to another grid: `"reference"` (bilinear with aligned
            corners), `"bilinear"`, `"bicubic"`, `"antialiased"` (bicubic with antialiasing) or `"dinov2"` (bicubic, as
            in Meta's code). A model created from a checkpoint uses the method of the checkpoint's project.
        mlp: Type of the MLPs: `"mlp"`, or `"swiglu"` for gated MLPs with the activation SiLU; see
            `keras_vit.layers.SwiGLU`.
        qk_norm: Whether each attention head normalizes queries and keys before their product.
        norm_before_blocks: Whether a norm precedes the first block (as in CLIP).
        final_norm: Whether a norm follows the last block.
        rope_base: Base of the periods of `position_embedding="rope2d"`.
        rope_shift: Maximum random shift of the coordinates of `"rope2d"` during training, or None.
        rope_jitter: Maximum random factor of each coordinate of `"rope2d"` during training, or None.
        rope_rescale: Maximum random factor that both coordinates of `"rope2d"` share during training, or None. DINOv3
            uses 2.
        block: Class or function that creates each block, or its registered name. It must be registered with
            `keras.saving.register_keras_serializable`. The model calls `block(attention, mlp, dtype=..., name=...)`,
            with further arguments of `keras_vit.layers.EncoderBlock` only where they differ from its defaults, and
            calls the block with the tokens `[B, N, D]`.
        attention: Class or function that creates the attention of each block, or its registered name, as for `block`.
            The model calls `attention(num_heads, dtype=..., name=...)`, with further arguments of
            `keras_vit.layers.SelfAttention` only where they differ from its defaults. `EncoderBlock` calls
            `layer(tokens, training=...)`.
        head: Keras layer that replaces pooling and classification, or None. The model calls
            `head(tokens, grid=patches)` with the tokens after the final norm `[B, prefix tokens + registers + h*w, D]`
            and the patches on their grid `[B, h, w, D]`. If the layer has an attribute `blocks`, such as `(5, 11)`, the
            layer receives lists of the tokens and patches after each of these blocks. `classes` is ignored.
    """

    pooling: Literal["token", "gap", "token+gap", "map"] | None = "token"
    representation_size: int | None = None
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    position_embedding: Literal["learned", "learned2d", "sincos2d", "relative", "rope2d", "none"] = "learned"
    position_embedding_at: Literal["input", "every_layer", "every_layer_shared"] = "input"
    num_registers: int = 0
    activation: str = "gelu_tanh"
    _: dataclasses.KW_ONLY
    class_token: bool | None = None
    distillation_token: bool | Literal["unused"] = False
    norm: Literal["layer", "rms"] = "layer"
    layer_norm_epsilon: float = 1e-6
    qkv_bias: bool | tuple[bool, bool, bool] = True
    layer_scale: float | None = None
    norm_after_pooling: bool = False
    resnet_numerics: Literal["reference", "timm"] = "reference"
    head_norm: bool = False
    remat: Literal["none", "blocks"] = "none"
    attention_chunk_size: int | None = None
    patch_norm: bool = False
    head_dim: int | None = None
    output_projection: Literal["bias", "no_bias", "none"] = "bias"
    pool_prefix_tokens: bool = False
    position_grid: Size | None = None
    position_resizing: Literal["reference", "bilinear", "bicubic", "antialiased", "dinov2"] = dataclasses.field(
        default="reference", compare=False
    )
    mlp: Literal["mlp", "swiglu"] = "mlp"
    qk_norm: bool = False
    norm_before_blocks: bool = False
    final_norm: bool = True
    rope_base: float = 100.0
    rope_shift: float | None = None
    rope_jitter: float | None = None
    rope_rescale: float | None = None
    block: str | Callable[..., keras.layers.Layer] = STANDARD["block"]
    attention: str | Callable[..., keras.layers.Layer] = STANDARD["attention"]
    head: keras.layers.Layer | dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class PublishedViT(ViTOptions, Published):
    """Arguments of the constructors of published Vision Transformers, such as `ViT_B16`."""


@dataclasses.dataclass(frozen=True)
class ViTArguments(ViTOptions, Config, ViTVariant):
    """Checked arguments of a Vision Transformer; the base class of `ViTConfig`."""

    COMMON: ClassVar[tuple[str, ...]] = (
        *Config.COMMON,
        *("patch_size", "hidden_size", "num_layers", "num_heads", "mlp_dim", "class_token"),
    )
    FREE: ClassVar[tuple[str, ...]] = (
        *Config.FREE,
        *("dropout_rate", "attention_dropout_rate", "drop_path_rate", "remat", "attention_chunk_size"),
        *("position_grid", "position_resizing", "rope_shift", "rope_jitter", "rope_rescale"),
    )
    # Arguments of the layers after the encoder. Pre-training models do not have these layers.
    OF_HEAD: ClassVar[tuple[str, ...]] = (
        *("classes", "include_top", "pooling", "representation_size", "classifier_activation", "head_bias"),
        *("norm_after_pooling", "pool_prefix_tokens", "head_norm", "head"),
    )

    def __post_init__(self):
        use = dict.fromkeys(("avg", "average", "mean"), "'gap' for the mean of the patches")
        use["max"] = "None, and keras.layers.GlobalMaxPooling1D() on the output of a model with include_top=False"
        self._refuse(self.pooling in use, f"`pooling` must be {use.get(str(self.pooling))}.", "pooling")
        if self.head is not None:
            self._resolve_head()
        for name in STANDARD:
            self._set(name, registered_name(name, getattr(self, name)))
        super().__post_init__()
        self._set("patch_size", plain(checks.size_pair("patch_size", self.patch_size)))
        for name in ("hidden_size", "num_heads", "mlp_dim"):
            self._set(name, checks.positive_int(name, getattr(self, name)))
        for name in ("num_layers", "num_registers"):
            self._set(name, checks.positive_int(name, getattr(self, name), minimum=0))
        for name in ("representation_size", "attention_chunk_size", "head_dim"):
            if getattr(self, name) is not None:
                self._set(name, checks.positive_int(name, getattr(self, name)))
        for name in ("dropout_rate", "attention_dropout_rate", "drop_path_rate", "layer_norm_epsilon"):
            self._set(name, checks.rate(name, getattr(self, name)))
        if self.layer_scale is not None:
            self._set("layer_scale", checks.finite_number("layer_scale", self.layer_scale, zero=True))
        get_activation(self.activation)
        self._set("qkv_bias", one_or_three("qkv_bias", self.qkv_bias))
        if self.resnet_blocks is not None:
            units = checks.sequence("resnet_blocks", self.resnet_blocks, "integers, the units of each stage")
            self._set("resnet_blocks", tuple(checks.positive_int("resnet_blocks", n) for n in units))
        self._resolve()
        if self.head_dim is None or self.pooling == "map":
            checks.divisible("hidden_size", self.hidden_size, "num_heads", self.num_heads)
        self._check_combinations()

    @classmethod
    def of_encoder(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments without the arguments of the head."""
        return {name: value for name, value in arguments.items() if name not in cls.OF_HEAD}

    def _resolve_head(self):
        """Deserialize the head, and reject the arguments that the head replaces."""
        if isinstance(self.head, dict):
            self._set("head", keras.saving.deserialize_keras_object(self.head))
        checks.instance("head", self.head, keras.layers.Layer, "a layer that is called as head(tokens, grid=patches)")
        for name in self.OF_HEAD:
            kept = name in ("classes", "classifier_activation", "head")
            replaced = not kept and getattr(self, name) not in (getattr(type(self), name), None)
            self._refuse(replaced, f"`head` replaces the argument `{name}`: leave it out.", name)
        self._set("pooling", None)
        self._set("classes", None)
        for block in getattr(self.head, "blocks", None) or ():
            wrong = block not in range(-self.num_layers, self.num_layers)
            self._refuse(wrong, f"The model has no block {block!r}, which `head` reads.", "num_layers")

    def _resolve(self):
        """Resolve arguments that depend on other arguments, so that equal models have equal configurations."""
        if self.class_token is None:
            self._set("class_token", self.pooling not in ("gap", "map"))
        if self.head_dim is not None and self.head_dim * self.num_heads == self.hidden_size:
            self._set("head_dim", None)
        if self.mlp == "swiglu" and self.activation == type(self).activation:
            self._set("activation", "silu")
        if not self.include_top:
            self._set("head_norm", False)
        if self.position_grid is not None:
            grid = plain(checks.size_pair("position_grid", self.position_grid))
            self._set("position_grid", grid if self.image_size is None else None)

    def _check_combinations(self):
        self._refuse(
            self.head_dim is not None and self.output_projection == "none",
            "output_projection='none' needs num_heads * head_dim == hidden_size.",
            *("num_heads", "head_dim", "hidden_size"),
        )
        self._refuse(
            self.pooling in ("token", "token+gap") and not self.class_token,
            f"pooling={self.pooling!r} needs the class token; use pooling='gap' without it.",
            "class_token",
        )
        self._refuse(
            self.distillation_token in ((True,) if self.head else (True, "unused")) and self.pooling != "token",
            "`distillation_token` needs pooling='token': DeiT reads both tokens.",
            "pooling",
        )
        self._refuse(
            self.head_norm and (self.pooling is None or self.distillation_token),
            "`head_norm` needs a single head that reads one vector per image.",
            *("pooling", "distillation_token"),
        )
        for name in ("norm_after_pooling", "pool_prefix_tokens"):
            self._refuse(getattr(self, name) and self.pooling != "gap", f"`{name}` needs pooling='gap'.", "pooling")
        added = self.position_embedding in position.KINDS
        self._refuse(
            not added and self.position_embedding_at != "input",
            "`position_embedding_at` applies to embeddings that are added to tokens; leave it at 'input' for others.",
            *("position_embedding", "position_embedding_at"),
        )
        gated = self.mlp == "swiglu"
        self._refuse(gated and self.activation != "silu", "The activation of mlp='swiglu' is SiLU.", "activation")
        self._refuse(
            self.norm_after_pooling and not self.final_norm,
            "`norm_after_pooling` moves the final norm; leave it or `final_norm` out.",
            *("norm_after_pooling", "final_norm"),
        )
        self._check_rope()
        relative = self.position_embedding == "relative"
        self._refuse(
            relative and self.image_size is None,
            "Relative position embeddings have one entry per offset and cannot be resized: they need an `image_size`.",
            *("position_embedding", "image_size"),
        )
        self._refuse(
            self.attention_chunk_size and (self.attention_dropout_rate or relative),
            "`attention_chunk_size` excludes dropout of attention weights and relative positions.",
            *("attention_chunk_size", "attention_dropout_rate", "position_embedding"),
        )

    def _check_rope(self):
        names = ("rope_base", "rope_shift", "rope_jitter", "rope_rescale")
        for name in names if self.position_embedding != "rope2d" else ():
            wrong = getattr(self, name) != getattr(type(self), name)
            self._refuse(wrong, f"`{name}` needs position_embedding='rope2d'.", name, "position_embedding")
        self._set("rope_base", checks.finite_number("rope_base", self.rope_base))
        if self.rope_shift is not None:
            self._set("rope_shift", checks.finite_number("rope_shift", self.rope_shift, zero=True))
        for name in names[2:]:
            if getattr(self, name) is not None:
                self._set(name, ratio(name, getattr(self, name)))
        head_dim = self.head_dim or self.hidden_size // self.num_heads
        self._refuse(
            self.position_embedding == "rope2d" and head_dim % 4 != 0,
            f"position_embedding='rope2d' needs heads whose width is a multiple of 4, not of {head_dim}.",
            *("hidden_size", "num_heads", "head_dim"),
        )
