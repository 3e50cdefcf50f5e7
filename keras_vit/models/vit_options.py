"""Options of Vision Transformers: names, types, defaults and documentation."""

import dataclasses
from typing import Literal

from keras_vit.models.config import Options, Published, Size


@dataclasses.dataclass(frozen=True)
class ViTOptions(Options):
    """Options of `keras_vit.VisionTransformer` and of the constructors of its variants, such as `ViT_B16`.

    Args:
        pooling: `"token"` (class token), `"gap"` (mean of the patches), `"map"` (attention pooling) or None (all
            tokens).
        representation_size: Width of a dense layer with tanh before the head, or None for no such layer.
        dropout_rate: Rate of the dropout after the position embeddings and in the blocks.
        attention_dropout_rate: Rate of the dropout of attention weights.
        drop_path_rate: Stochastic depth rate of the last block. The rates increase linearly from 0 at the first block.
        position_embedding: `"learned"`, `"learned2d"`, `"sincos2d"`, `"relative"` or `"none"` (appendix D.4).
        position_embedding_at: Where position embeddings are added: `"input"`, `"every_layer"` or
            `"every_layer_shared"` (appendix D.4).
        num_registers: Number of register tokens.
        activation: Activation of the MLPs: `"gelu_tanh"` (the reference), `"gelu"` (error function), `"quick_gelu"`, or
            a name that `keras.activations` knows.
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
        head_norm: Whether a batch norm without scale and offset precedes the head (MAE's linear probe).
        remat: `"blocks"` to recompute the activations of each block in the backward pass instead of saving them, or
            `"none"`.
        attention_chunk_size: Number of queries whose attention weights are computed at a time, for long sequences.
            None for all at once. See `keras_vit.layers.SelfAttention`.
        patch_norm: Whether a layer norm precedes the projection of the patches, and another follows it.
        head_dim: Width of an attention head, or None for `hidden_size / num_heads`.
        output_projection: Projection of the heads of an attention: with a bias (`"bias"`), without a bias
            (`"no_bias"`), or `"none"` for the concatenated heads, whose widths must add up to `hidden_size`.
        pool_prefix_tokens: Whether the mean of `pooling="gap"` includes the class token and registers.
        position_grid: Grid (height, width), in patches, of the position table of a model for images of any size, whose
            table is resized in the model. None for the grid of 224-pixel images, and in a model with an `image_size`.
        position_resizing: Resizing of the position table to another grid: `"reference"` (bilinear between the corners),
            `"bilinear"`, `"bicubic"` or `"antialiased"` (bicubic). A model of a checkpoint has its project's.
    """

    pooling: Literal["token", "gap", "map"] | None = "token"
    representation_size: int | None = None
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    position_embedding: Literal["learned", "learned2d", "sincos2d", "relative", "none"] = "learned"
    position_embedding_at: Literal["input", "every_layer", "every_layer_shared"] = "input"
    num_registers: int = 0
    activation: str = "gelu_tanh"
    _: dataclasses.KW_ONLY
    class_token: bool | None = None
    distillation_token: bool | Literal["unused"] = False
    layer_norm_epsilon: float = 1e-6
    qkv_bias: bool = True
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
    position_resizing: Literal["reference", "bilinear", "bicubic", "antialiased"] = dataclasses.field(
        default="reference", compare=False
    )


@dataclasses.dataclass(frozen=True)
class PublishedViT(ViTOptions, Published):
    """Arguments of the constructors of Vision Transformers, such as `ViT_B16`."""
