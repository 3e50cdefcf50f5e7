"""Vision Transformers in Keras 3."""

from keras_vit import layers
from keras_vit.models import BiTResNet, VisionTransformer, create_model, list_models
from keras_vit.version import __version__

__all__ = ["BiTResNet", "VisionTransformer", "__version__", "create_model", "layers", "list_models"]
