"""Small Vision Transformers with random weights, and images for them."""

import functools

import numpy as np

from keras_vit import models
from keras_vit.inspection import attention_maps

SIZE = (32, 24)  # not square, so that a grid laid down the wrong way does not fit
GRID = (4, 3)
CLASSES = 5

VARIANTS = {
    "token": {},
    "gap": {"pooling": "gap"},
    "map": {"pooling": "map"},
    "all_tokens": {"pooling": None, "include_top": False},
    "registers": {"num_registers": 2},
    "deit": {"distillation_token": True},
    "hybrid": {"resnet_blocks": (1, 1), "patch_size": 1},
    "every_layer": {"position_embedding_at": "every_layer"},
    "every_layer_shared": {"position_embedding_at": "every_layer_shared", "num_registers": 2},
    "learned2d": {"position_embedding": "learned2d"},
    "sincos2d": {"position_embedding": "sincos2d", "pooling": "gap"},
    "relative": {"position_embedding": "relative"},
    "any_size": {"image_size": None},
    "bfloat16": {"dtype": "mixed_bfloat16"},
    "remat": {"remat": "blocks", "dropout_rate": 0.5, "attention_dropout_rate": 0.5, "drop_path_rate": 0.5},
    "layer_scale": {"layer_scale": 0.5, "qkv_bias": False},
    "chunks": {"attention_chunk_size": 4},
    "fc_norm": {"pooling": "gap", "norm_after_pooling": True},
    "vit_pytorch": {"patch_norm": True, "head_dim": 6, "output_projection": "no_bias", "qkv_bias": False},
    "no_output": {"output_projection": "none"},
    "mean_of_all": {"pooling": "gap", "class_token": True, "pool_prefix_tokens": True, "num_registers": 2},
    "probabilities": {"classifier_activation": "softmax"},
}
PREFIX = {
    "gap": 0,
    "map": 0,
    "sincos2d": 0,
    "fc_norm": 0,
    "registers": 3,
    "mean_of_all": 3,
    "every_layer_shared": 3,
    "deit": 2,
}


def model(seed=0, **arguments):
    options = {
        "patch_size": 8,
        "hidden_size": 16,
        "num_layers": 2,
        "num_heads": 2,
        "mlp_dim": 24,
        "image_size": SIZE,
        "classes": CLASSES,
    }
    return randomise(models.VisionTransformer(**{**options, **arguments}), seed)


@functools.cache
def shared(name="token"):
    """The model of a variant, for tests that do not change it."""
    return model(**VARIANTS[name])


@functools.cache
def maps(name="token"):
    """The attention maps of that model for the three images, which are not to be changed either."""
    return attention_maps(shared(name), images())


def randomise(network, seed=0):
    """Gives every weight a random value of its own, the same on each backend (new heads and class tokens are zero)."""
    rng = np.random.default_rng(seed)
    for weight in network.trainable_variables:
        center = 1.0 if weight.path.endswith(("scale", "gamma")) else 0.0
        weight.assign(center + 0.3 * rng.normal(size=weight.shape))
    return network


def images(count=3, size=SIZE, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (count, *size, 3)).astype("float32")
