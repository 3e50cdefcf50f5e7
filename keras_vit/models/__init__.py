"""Models: Vision Transformers, hybrids and BiT."""

from keras_vit.models.bit import BiTConfig, BiTResNet
from keras_vit.models.dense_heads import LinearSegmenter, UpsampleSegmenter
from keras_vit.models.inputs import preprocess_input
from keras_vit.models.mae import MAEConfig, MaskedAutoencoder
from keras_vit.models.masked import MaskedConfig, MaskedModel
from keras_vit.models.masked_patch import MaskedPatchConfig, MaskedPatchPredictor
from keras_vit.models.registry import build_variant
from keras_vit.models.representation import features, representation
from keras_vit.models.vit import VisionTransformer
from keras_vit.models.vit_config import ViTConfig
from keras_vit.zoo.variants import BIT, VIT, constructor_name, list_models

__all__ = [
    "BIT",
    "VIT",
    "BiTConfig",
    "BiTResNet",
    "LinearSegmenter",
    "MAEConfig",
    "MaskedAutoencoder",
    "MaskedConfig",
    "MaskedModel",
    "MaskedPatchConfig",
    "MaskedPatchPredictor",
    "UpsampleSegmenter",
    "ViTConfig",
    "VisionTransformer",
    "build_variant",
    "constructor_name",
    "features",
    "list_models",
    "preprocess_input",
    "representation",
]
