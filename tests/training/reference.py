"""The golden fine-tuning runs of the reference, and ours set up in the same way."""

import re

import numpy as np

from keras_vit import VisionTransformer
from keras_vit import recipe as recipes
from tests import golden_data


def load(name):
    """A golden trajectory with its parameters under our names: (data, start, end, averages at the end)."""
    data = golden_data.load(name)
    start = rename(golden_data.params(golden_data.load("traj_model")))
    end = golden_data.params(data)
    averages = rename({key.removeprefix("ema/"): value for key, value in end.items() if key.startswith("ema/")})
    return data, start, rename({key: value for key, value in end.items() if not key.startswith("ema/")}), averages


def rename(params):
    """Legacy names of the reference's files to the paths of our variables."""
    renamed = {}
    for name, value in params.items():
        name = (
            name.removeprefix("Transformer/").replace("LayerNorm_2", "LayerNorm_1").replace("MlpBlock_3", "MlpBlock_0")
        )
        name = name.replace("MultiHeadDotProductAttention_1", "MultiHeadDotProductAttention_0")
        renamed[re.sub("^cls$", "cls/cls", name)] = value
    return renamed


def create_model(meta, **arguments):
    """The model of the trajectories at its initial values of Keras."""
    return VisionTransformer(
        patch_size=tuple(meta["patch"]),
        hidden_size=meta["d"],
        num_layers=meta["layers"],
        num_heads=meta["heads"],
        mlp_dim=meta["mlp"],
        image_size=tuple(meta["image"]),
        classes=meta["classes"],
        **arguments,
    )


def assign(model, params):
    """Sets every trainable weight of the model; the names must agree exactly."""
    weights = {weight.path: weight for weight in model.trainable_variables}
    assert set(weights) == set(params)
    for path, weight in weights.items():
        weight.assign(np.reshape(params[path], weight.shape))


def recipe(meta, **fields):
    """The recipe that a trajectory's description states."""
    sgd = meta["optimizer"].startswith("sgd")
    linear = meta["decay"].startswith("linear")
    schedule = recipes.Schedule(
        name="linear" if linear else "cosine", warmup_steps=meta["warmup_steps"], end=1e-5 if linear else 0.0
    )
    return recipes.Recipe(
        total_steps=meta["total_steps"],
        optim=recipes.Optim(
            name="sgd" if sgd else "adamw",
            learning_rate=meta["base_lr"],
            schedule=schedule,
            momentum_dtype=meta.get("accumulator", "float32"),
            weight_decay=meta.get("weight_decay", 0.0),
            clip_norm=meta["clip"],
            ema_momentum=meta.get("ema_momentum", 0.0),
            **fields,
        ),
    )
