"""Models: Vision Transformers, hybrids and BiT."""

from keras_vit.models.bit import BiTConfig as BiTConfig
from keras_vit.models.bit import BiTResNet
from keras_vit.models.dense_heads import LinearSegmenter, UpsampleSegmenter
from keras_vit.models.inputs import preprocess_input
from keras_vit.models.mae import MAEConfig as MAEConfig
from keras_vit.models.mae import MaskedAutoencoder
from keras_vit.models.masked import MaskedConfig as MaskedConfig
from keras_vit.models.masked import MaskedModel as MaskedModel
from keras_vit.models.masked_patch import MaskedPatchConfig as MaskedPatchConfig
from keras_vit.models.masked_patch import MaskedPatchPredictor
from keras_vit.models.representation import feature_extractor
from keras_vit.models.representation import representation as representation
from keras_vit.models.vit import VisionTransformer
from keras_vit.models.vit_config import ViTConfig
from keras_vit.zoo.variants import BIT as BIT
from keras_vit.zoo.variants import VIT as VIT
from keras_vit.zoo.variants import constructor_name as constructor_name
from keras_vit.zoo.variants import list_models

__all__ = [
    "BiTResNet",
    "LinearSegmenter",
    "MaskedAutoencoder",
    "MaskedPatchPredictor",
    "UpsampleSegmenter",
    "ViTConfig",
    "VisionTransformer",
    "feature_extractor",
    "list_models",
    "preprocess_input",
]
