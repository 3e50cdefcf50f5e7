"""Tiny models, images and runs that the tests share. A matrix of models is in `tests/models/variants.py`."""

import functools
import io
import json

import numpy as np
import tensorflow as tf
from PIL import Image

from keras_vit import data, models, recipe
from keras_vit.data import preprocess as preprocessing
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.sample_images import SampleImages
from keras_vit.runs import run_directory

# Sizes of a Vision Transformer that is built and traced in a moment, as arguments of a variant and of the model.
ARGUMENTS = {"patch_size": 4, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 32}
SIZES = {**ARGUMENTS, "image_size": 8}
CLASS_NAMES = ("ape", "bee", "cat", "dog", "élan", "fox", "gnu")
SIZE = 16
PREPROCESS = f"decode|resize({SIZE})|value_range(-1, 1)"


def model(seed=0, **arguments):
    """A Vision Transformer of two small blocks with random weights, including the head."""
    options = {**ARGUMENTS, "patch_size": 8, "num_layers": 2, "image_size": SIZE, "classes": len(CLASS_NAMES)}
    network = models.VisionTransformer(**{**options, **arguments})
    return randomize(network, seed)


def regression(values, **arguments):
    """A model that predicts numbers."""
    found = model(num_layers=1, classes=len(values.names), **arguments)
    found.values = values
    return found


def randomize(network, seed=0):
    """Move every variable to a random value of its own, so that unused or exchanged variables change the outputs."""
    rng = np.random.default_rng(seed)
    for variable in network.variables:
        if "seed_generator" not in variable.path:
            center = 1.0 if variable.path.endswith(("scale", "gamma", "variance")) else 0.0
            # Logits of a few units, whatever the width.
            spread = 4.0 / variable.shape[0] ** 0.5 if variable.path == "head/kernel" else 0.2
            variable.assign(rng.normal(center, spread, variable.shape))
    return network


def preprocess(contents):
    """From an encoded image, or its pixels, to the input of the model."""
    return _preprocess_function()(contents)


@functools.cache
def _preprocess_function():
    return preprocessing.single_image(PREPROCESS)


def card(output="softmax", **details):
    """The description of the predictor."""
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


def write_digits_run(directory, output="softmax", seed=0, **arguments):
    """Write the files of a training run on the digits, with random weights, and return the model."""
    source, test = data.open_source("digits", "train"), data.open_source("digits", "test")
    network = models.VisionTransformer(**{**SIZES, "channels": 1, "classes": 10, **arguments})
    randomize(network, seed)
    if network.output_shape[-1] == 10:
        network.class_names, network.prediction_activation = source.class_names, output
    directory.mkdir(parents=True, exist_ok=True)
    run_directory.save_model(network, str(directory))
    recipe_used = recipe.Recipe(
        data=recipe.Data(source="digits", pp_train="value_range(-1, 1)", pp_eval="value_range(-1, 1)"), loss=output
    )
    description = {
        "name": source.name,
        "class_names": list(source.class_names),
        "num_classes": 10,
        "num_train": source.num_examples,
        "num_eval": test.num_examples,
        "label_kind": "class",
    }
    run_directory.write_config(str(directory), recipe_used, description)
    entry = {"step": 5, "split": "test", "eval_accuracy": 0.5, "eval_loss": 1.0, "examples": 360}
    (directory / "metrics.jsonl").write_text(json.dumps({"step": 4, "loss": 2.0}) + "\n" + json.dumps(entry) + "\n")
    return network


def digit_files(tmp_path, source, count=3):
    """Write the first images of a source as PNG files; returns their paths."""
    paths = []
    for index in range(count):
        paths.append(tmp_path / f"digit_{index}.png")
        paths[-1].write_bytes(tf.io.encode_png(source.images[index]).numpy())
    return paths
