"""Weights by name: the published ones, the Hugging Face hub, downloads, and the classes of ImageNet heads."""

from keras_vit.zoo.cache import fetch, places
from keras_vit.zoo.labels import decode_predictions, imagenet_classes
from keras_vit.zoo.names import Named, find, parse, resolve
from keras_vit.zoo.published import PublishedWeights, list_weights

__all__ = [
    "Named",
    "PublishedWeights",
    "decode_predictions",
    "fetch",
    "find",
    "imagenet_classes",
    "list_weights",
    "parse",
    "places",
    "resolve",
]
