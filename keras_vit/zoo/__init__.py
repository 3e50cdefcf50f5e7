"""Published weights: names, addresses, cache, and the classes of their heads."""

import os

import keras

from keras_vit.checkpoints import LoadReport, load_checkpoint
from keras_vit.zoo.augreg import read_index, select_augreg
from keras_vit.zoo.cache import fetch, find, resolve
from keras_vit.zoo.labels import decode_predictions, imagenet_classes
from keras_vit.zoo.published import PublishedWeights, list_weights

__all__ = [
    "PublishedWeights",
    "decode_predictions",
    "fetch",
    "find",
    "imagenet_classes",
    "list_weights",
    "load_weights",
    "read_index",
    "resolve",
    "select_augreg",
]


def load_weights(model: keras.Model, name: str, weights: str | os.PathLike[str]) -> LoadReport:
    """Loads published weights or a checkpoint into a model; a head that is kept brings the names of its classes.

    Args:
        model: A model of the variant `name`.
        name: Name of the variant, as in `keras_vit.list_models()`.
        weights: See `resolve`.

    Returns:
        What was loaded.

    Raises:
        ValueError: If there are no such weights, or they do not fit.
        OSError: If they cannot be fetched.
    """
    report = load_checkpoint(model, resolve(name, weights), head="auto")
    entry = find(name, os.fspath(weights))
    if entry is not None and "head/kernel" in report.loaded:
        model.class_names = tuple(label for _, label in imagenet_classes(entry.classes))
    return report
