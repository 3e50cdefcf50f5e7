"""Keras layers of Vision Transformers, hybrids and BiT.

All layers also accept the arguments of `keras.layers.Layer`, such as `name` and `dtype`.
"""

from keras_vit.layers import (
    attention,
    bit,
    dense,
    dropout,
    encoder,
    interpolation,
    masking,
    mlp,
    normalization,
    patches,
    pooling,
    position,
    resnet,
    rope,
    tokens,
)
from keras_vit.layers.attention import *
from keras_vit.layers.bit import *
from keras_vit.layers.dense import *
from keras_vit.layers.dropout import *
from keras_vit.layers.encoder import *
from keras_vit.layers.interpolation import *
from keras_vit.layers.masking import *
from keras_vit.layers.mlp import *
from keras_vit.layers.normalization import *
from keras_vit.layers.patches import *
from keras_vit.layers.pooling import *
from keras_vit.layers.position import *
from keras_vit.layers.resnet import *
from keras_vit.layers.rope import *
from keras_vit.layers.tokens import *

__all__ = [
    *attention.__all__,
    *bit.__all__,
    *dense.__all__,
    *dropout.__all__,
    *encoder.__all__,
    *interpolation.__all__,
    *masking.__all__,
    *mlp.__all__,
    *normalization.__all__,
    *patches.__all__,
    *pooling.__all__,
    *position.__all__,
    *resnet.__all__,
    *rope.__all__,
    *tokens.__all__,
]
