"""The small models of all tests, with images that are not square: a transposed grid has another shape."""

import functools

import numpy as np

from keras_vit.inspection import attention_maps
from tests import tiny
from tests.models import variants

SIZE = (32, 24)
GRID = (4, 3)
CLASSES = len(tiny.CLASS_NAMES)

VARIANTS = {
    name: variants.VARIANTS[name]
    for name in (
        *("token", "gap", "map", "registers", "deit", "hybrid", "every_layer", "shared", "learned2d", "sincos2d"),
        *("relative", "any_size", "fc_norm", "vit_pytorch"),
    )
} | {
    "all_tokens": {"pooling": None, "include_top": False},
    "bfloat16": {"dtype": "mixed_bfloat16"},
    "remat": {"remat": "blocks", "dropout_rate": 0.5, "attention_dropout_rate": 0.5, "drop_path_rate": 0.5},
    "layer_scale": {"layer_scale": 0.5, "qkv_bias": False},
    "chunks": {"attention_chunk_size": 4},
    "no_output": {"output_projection": "none"},
    "mean_of_all": {**variants.VARIANTS["mean_of_all"], "num_registers": 2},
    "probabilities": {"classifier_activation": "softmax"},
}
PREFIX = {  # else 1
    **dict.fromkeys(("gap", "map", "sincos2d"), 0),
    **dict.fromkeys(("shared", "deit"), 2),
    **dict.fromkeys(("registers", "every_layer", "mean_of_all"), 3),
}


def model(seed=0, **arguments):
    return tiny.model(seed, **{"image_size": SIZE, **arguments})


@functools.cache
def shared(name="token"):
    """The model of a variant, for tests that do not change it."""
    return model(**VARIANTS[name])


@functools.cache
def maps(name="token"):
    """The attention maps of that model for the three images, which are not to be changed either."""
    return attention_maps(shared(name), images())


def images(count=3, size=SIZE, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (count, *size, 3)).astype("float32")
