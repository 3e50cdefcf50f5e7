"""Kinds of models that checkpoints hold."""

import dataclasses

import keras

from keras_vit.models import (
    BiTConfig,
    BiTResNet,
    MAEConfig,
    MaskedAutoencoder,
    VisionTransformer,
    ViTConfig,
)
from keras_vit.models.config import Config


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of model.

    Attributes:
        noun: What messages call it.
        model: Its class.
        config: Class of its arguments.
    """

    noun: str
    model: type[keras.Model]
    config: type[Config]


KINDS = {
    "vit": Kind("Vision Transformer", VisionTransformer, ViTConfig),
    "bit": Kind("BiT ResNet", BiTResNet, BiTConfig),
    "mae": Kind("masked autoencoder", MaskedAutoencoder, MAEConfig),
}
