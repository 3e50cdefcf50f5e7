"""Weights by name: published checkpoints, the Hugging Face hub, downloads, and the class names of ImageNet heads."""

from keras_vit.zoo.cache import fetch
from keras_vit.zoo.cache import find_local as find_local
from keras_vit.zoo.cache import search_paths as search_paths
from keras_vit.zoo.cache import verify as verify
from keras_vit.zoo.labels import decode_predictions, imagenet_classes
from keras_vit.zoo.names import WeightsName as WeightsName
from keras_vit.zoo.names import find as find
from keras_vit.zoo.names import parse_weights_name as parse_weights_name
from keras_vit.zoo.names import resolve as resolve
from keras_vit.zoo.published import PublishedWeights, list_weights

__all__ = ["PublishedWeights", "decode_predictions", "fetch", "imagenet_classes", "list_weights"]
