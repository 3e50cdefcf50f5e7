"""A tiny classifier and smooth images, shared by the tests of inference, export and serving."""

import functools
import io

import numpy as np
import tensorflow as tf
from PIL import Image

from keras_vit import models
from keras_vit.data import preprocess as preprocessing
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.sample_images import SampleImages

CLASS_NAMES = ("ape", "bee", "cat", "dog", "élan", "fox", "gnu")
SIZE = 16
PREPROCESS = f"decode|resize({SIZE})|value_range(-1, 1)"


def model(seed=0, **arguments):
    """A Vision Transformer of two small blocks whose weights are random, the head's too."""
    options = {
        "patch_size": 8,
        "hidden_size": 16,
        "num_layers": 2,
        "num_heads": 2,
        "mlp_dim": 32,
        "image_size": SIZE,
        "classes": len(CLASS_NAMES),
    }
    network = models.VisionTransformer(**{**options, **arguments})
    return randomize(network, seed)


def randomize(network, seed=0):
    """Give every weight a random value of its own (a new head is zero: all classes would tie)."""
    rng = np.random.default_rng(seed)
    for weight in network.trainable_variables:
        noise = rng.normal(size=weight.shape)
        if weight.path.endswith("scale"):
            weight.assign(1.0 + 0.1 * noise)
        else:
            # Logits of a few units, whatever the width.
            weight.assign(noise * (4.0 / weight.shape[0] ** 0.5 if weight.path == "head/kernel" else 0.2))
    return network


def preprocess(contents):
    """From an encoded image, or its pixels, to the input of the model."""
    return _preprocess_function()(contents)


@functools.cache
def _preprocess_function():
    return preprocessing.single_image(PREPROCESS)


def card(output="softmax", **details):
    """The description of the classifier."""
    return ModelCard(CLASS_NAMES, PREPROCESS, output, (SIZE, SIZE, 3), **details)


def arrays(count=6, height=20, width=24, seed=0):
    """Smooth color images, uint8 `[count, height, width, 3]`."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (count, 4, 4, 3)).astype(np.float32)
    return tf.cast(tf.image.resize(coarse, (height, width)), tf.uint8).numpy()


def images(count=6):
    """The smooth images as PNG files, with labels."""
    contents = [tf.io.encode_png(image).numpy() for image in arrays(count)]
    return SampleImages(contents, np.arange(count) % len(CLASS_NAMES), [f"#{index}" for index in range(count)])


def encode(array, kind, **options):
    """One image as a file of the given kind."""
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind, **options)
    return buffer.getvalue()
