"""Checks of the models and images that users pass to this package."""

import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.models.base import ConfiguredModel
from keras_vit.models.inputs import check_shape
from keras_vit.util import checks


def check_model(model: Any, name: str = "model") -> None:
    """Raise a ValueError if `model` is not a Keras model."""
    example = "open a file with keras.models.load_model, such as 'runs/digits/model.keras'"
    checks.instance(name, model, keras.Model, example)


def check_images(model: keras.Model, images: Any, name: str = "model") -> np.ndarray:
    """Return a batch of images as an array. Raises a ValueError for integers if the model expects floats in [-1, 1]."""
    check_model(model, name)
    images = checks.numbers_of("images", images, "a batch [B, height, width, channels]")
    if images.ndim != 4 or not len(images):
        raise ValueError(f"`images` must be a batch [B, height, width, channels]. Received: shape {images.shape}.")
    if isinstance(model, ConfiguredModel):
        if model.config.input_range is None and images.dtype.kind in "biu":
            raise ValueError(
                f"{type(model).__name__} takes floats in [-1, 1]. Received: images of type {images.dtype}. "
                "Preprocess the images as in training, for example images / 127.5 - 1."
            )
        check_shape(model, images)
    return images


def batches(images: Any, batch_size: int) -> Iterator[np.ndarray]:
    """Yield batches `[b, height, width, channels]` with b up to `batch_size`.

    `images` is an array or an iterable of images or batches. An iterable is read one element at a time. Consecutive
    images of the same size are in one batch.
    """
    for _, same in itertools.groupby(_each(images), key=lambda image: image.shape):
        while part := list(itertools.islice(same, batch_size)):
            yield np.stack(part)


def _each(images: Any) -> Iterator[np.ndarray]:
    for element in [images] if hasattr(images, "shape") else images:
        batch = np.asarray(element)
        batch = batch[None] if batch.ndim == 3 else batch
        if batch.ndim != 4:
            raise ValueError(
                "Each element of `images` must be an image [height, width, channels] or a batch of them. "
                f"Received: shape {batch.shape}."
            )
        yield from batch


def to_numpy(tensor: Any) -> np.ndarray:
    """Return a tensor as a float32 array."""
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))
