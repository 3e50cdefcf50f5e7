"""Published weights: names, downloads, and the classes of their heads."""

import os

import keras
from absl import logging

from keras_vit.checkpoints import LoadReport, load_checkpoint
from keras_vit.zoo.cache import check_weights, fetch, find, resolve
from keras_vit.zoo.labels import decode_predictions, imagenet_classes
from keras_vit.zoo.published import PublishedWeights, list_weights

__all__ = [
    "PublishedWeights",
    "check_weights",
    "decode_predictions",
    "fetch",
    "find",
    "imagenet_classes",
    "list_weights",
    "load_weights",
    "resolve",
]


def load_weights(model: keras.Model, name: str, weights: str | os.PathLike[str]) -> LoadReport:
    """Load published weights or a checkpoint into a model, and return the report.

    A head that is kept brings the names of its classes.

    Args:
        model: A model of the variant `name`.
        name: Name of the variant, as in `keras_vit.list_models()`.
        weights: See `resolve`.

    Raises:
        ValueError: If there are no such weights, or they do not fit.
        OSError: If they cannot be downloaded.

    Example:
    >>> path = keras_vit.save_checkpoint(model, "vit.npz")
    >>> load_weights(model, "ViT-B/16", path).missing
    []
    """
    entry = find(name, os.fspath(weights))
    report = load_checkpoint(model, resolve(name, weights), head="auto")
    if entry is not None and entry.classes is not None and "head/kernel" in report.loaded:
        size = model.config.image_size
        if size not in (None, entry.resolution):
            logging.warning(
                "%s of %s was last trained on images of %d pixels, the model takes %s: its accuracy is not the stated "
                "one. Pass image_size=%d, or fine-tune.",
                *(entry.name, name, entry.resolution, size, entry.resolution),
            )
        model.class_names = tuple(label for _, label in imagenet_classes(entry.classes))
    return report
