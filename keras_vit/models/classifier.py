"""Classification layers."""

import keras

from keras_vit.layers import Dense
from keras_vit.models.config import Config


def head_layer(config: Config, policy: keras.DTypePolicy, name: str = "head") -> keras.layers.Layer:
    """Create the classification layer. As in the reference, its kernel is initialized to zeros."""
    return Dense(
        config.classes,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(config.head_bias),
        dtype=policy,
        name=name,
    )


def batch_norm(policy: keras.DTypePolicy, name: str) -> keras.layers.Layer:
    """Create a batch norm without scale and offset, with PyTorch's momentum and MAE's epsilon."""
    return keras.layers.BatchNormalization(
        momentum=0.9, epsilon=1e-6, center=False, scale=False, dtype=policy, name=name
    )


def predictions(config: Config, logits: keras.KerasTensor) -> keras.KerasTensor:
    """Return the output of a model: the logits, or the result of `classifier_activation` in float32."""
    if config.classifier_activation is None:
        return logits
    return keras.layers.Activation(config.classifier_activation, dtype="float32", name="predictions")(logits)
