"""Signatures of the constructors of published variants, for editors and type checkers."""

import os
from typing import Literal, Protocol

import keras

from keras_vit.models.config import Auto, Model, Size
from keras_vit.models.vit_config import OutputProjection, Pooling, PositionEmbedding, PositionResizing, PositionsAt


class ViTConstructor(Protocol[Model]):
    """Signature of `ViT_B16` and the other constructors of Vision Transformers; `ViTConfig` says what they mean."""

    def __call__(
        self,
        image_size: Size | Auto | None = "auto",
        classes: int | Auto | None = "auto",
        weights: str | os.PathLike | None = None,
        include_top: bool = True,
        pooling: Pooling | None = "token",
        representation_size: int | None = None,
        classifier_activation: str | None = None,
        dropout_rate: float = 0.0,
        attention_dropout_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        position_embedding: PositionEmbedding = "learned",
        position_embedding_at: PositionsAt = "input",
        num_registers: int = 0,
        activation: str = "gelu_tanh",
        name: str | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        *,
        channels: int = 3,
        class_token: bool | None = None,
        distillation_token: bool | Literal["unused"] = False,
        layer_norm_epsilon: float = 1e-6,
        qkv_bias: bool = True,
        layer_scale: float | None = None,
        norm_after_pooling: bool = False,
        resnet_numerics: Literal["reference", "timm"] = "reference",
        head_bias: float = 0.0,
        remat: Literal["none", "blocks"] = "none",
        attention_chunk_size: int | None = None,
        patch_norm: bool = False,
        head_dim: int | None = None,
        output_projection: OutputProjection = "bias",
        pool_prefix_tokens: bool = False,
        head_norm: bool = False,
        position_grid: Size | None = None,
        position_resizing: PositionResizing = "reference",
        input_range: tuple[float, float] | None = None,
    ) -> Model:
        """Build the model."""


class BiTConstructor(Protocol[Model]):
    """Signature of `BiT_R50x1` and the other constructors of BiT ResNets; `BiTConfig` says what they mean."""

    def __call__(
        self,
        image_size: Size | Auto | None = "auto",
        classes: int | Auto | None = "auto",
        weights: str | os.PathLike | None = None,
        include_top: bool = True,
        classifier_activation: str | None = None,
        name: str | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        *,
        channels: int = 3,
        head_bias: float = 0.0,
        pool_padding: Literal["infinity", "zeros", "edge", "auto"] = "auto",
        input_range: tuple[float, float] | None = None,
    ) -> Model:
        """Build the model."""
