"""Keras layers that make up Vision Transformers, hybrids and BiT."""

from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.bit import BiTRoot, BiTStage, BiTUnit
from keras_vit.layers.dense import Dense, EinsumDense
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.encoder import EncoderBlock, LayerScale
from keras_vit.layers.interpolation import resize_table
from keras_vit.layers.masking import CorruptedPatches, RestoredPatches, VisiblePatches
from keras_vit.layers.mlp import MlpBlock, get_activation
from keras_vit.layers.normalization import GroupNorm, LayerNorm
from keras_vit.layers.patches import FlattenGrid, PatchEncoder
from keras_vit.layers.pooling import MAPHead, PatchMeanPooling, TokenPooling
from keras_vit.layers.position import AddPositionEmbs, FixedPositionEmbs, sincos_2d_table
from keras_vit.layers.resnet import BottleneckUnit, ResNetStage, StdConv2D
from keras_vit.layers.stochastic_depth import StochasticDepth
from keras_vit.layers.tokens import ClassToken, FirstTokens, RegisterTokens

__all__ = [
    "AddPositionEmbs",
    "BiTRoot",
    "BiTStage",
    "BiTUnit",
    "BottleneckUnit",
    "ClassToken",
    "CorruptedPatches",
    "FirstTokens",
    "FixedPositionEmbs",
    "RestoredPatches",
    "VisiblePatches",
    "Dense",
    "Dropout",
    "EinsumDense",
    "EncoderBlock",
    "FlattenGrid",
    "GroupNorm",
    "LayerNorm",
    "LayerScale",
    "MAPHead",
    "MlpBlock",
    "PatchEncoder",
    "PatchMeanPooling",
    "RegisterTokens",
    "ResNetStage",
    "SelfAttention",
    "StdConv2D",
    "StochasticDepth",
    "TokenPooling",
    "get_activation",
    "resize_table",
    "sincos_2d_table",
]
