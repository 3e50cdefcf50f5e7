"""Weights by name: published checkpoints, the Hugging Face hub, downloads, and the class names of ImageNet heads."""

from keras_vit.zoo.cache import fetch, find_here, places, verify
from keras_vit.zoo.labels import decode_predictions, imagenet_classes
from keras_vit.zoo.names import Named, find, parse, resolve
from keras_vit.zoo.published import PublishedWeights, list_weights

__all__ = [
    "Named",
    "PublishedWeights",
    "decode_predictions",
    "fetch",
    "find",
    "find_here",
    "imagenet_classes",
    "list_weights",
    "parse",
    "places",
    "resolve",
    "verify",
]
