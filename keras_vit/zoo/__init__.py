"""Weights by name: published checkpoints, the Hugging Face hub, downloads, and the class names of ImageNet heads."""

from keras_vit.zoo.cache import fetch
from keras_vit.zoo.cache import find_here as find_here
from keras_vit.zoo.cache import places as places
from keras_vit.zoo.cache import verify as verify
from keras_vit.zoo.labels import decode_predictions, imagenet_classes
from keras_vit.zoo.names import Named as Named
from keras_vit.zoo.names import find as find
from keras_vit.zoo.names import parse as parse
from keras_vit.zoo.names import resolve as resolve
from keras_vit.zoo.published import PublishedWeights, list_weights

__all__ = ["PublishedWeights", "decode_predictions", "fetch", "imagenet_classes", "list_weights"]
