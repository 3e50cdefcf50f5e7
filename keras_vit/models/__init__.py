"""The models: Vision Transformers, hybrids and BiT."""

from keras_vit.models.bit import BiTResNet
from keras_vit.models.configs import BIT, VIT, BiTConfig, ViTConfig
from keras_vit.models.factory import create_model, list_models
from keras_vit.models.representation import representation
from keras_vit.models.vit import VisionTransformer

__all__ = [
    "BIT",
    "VIT",
    "BiTConfig",
    "BiTResNet",
    "ViTConfig",
    "VisionTransformer",
    "create_model",
    "list_models",
    "representation",
]
