"""Preprocessing on the device: from a batch of the input pipeline to the values that a task takes."""

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np
import tensorflow as tf
from absl import logging
from keras import ops

from keras_vit import optim
from keras_vit import recipe as recipes
from keras_vit.data import mix, preprocess
from keras_vit.models.base import ConfiguredModel
from keras_vit.models.normalization import of_images, operation
from keras_vit.training import tasks
from keras_vit.training.tasks.patches import value_range

_MIX_SEED = 0x6D6978  # "mix": keeps these draws apart from those of dropout


def mix_center(seed: int, step: tf.Tensor) -> tf.Tensor:
    """Return where CutMix cuts in a step, float32 `[2]` in [0, 1)."""
    key = tf.stack([tf.constant(seed, tf.int32), tf.cast(step, tf.int32)])
    return tf.random.stateless_uniform([2], key)


def training_inputs(recipe: recipes.Recipe, classes: int, center: Callable = mix_center) -> Callable:
    """Return a function of (batch, step, replica) to the values of the recipe's task.

    The first value holds images `[b, height, width, channels]`, float32 in the range of the model. In classification,
    the second holds labels `[b, classes]`, float32: mixed where the recipe mixes, then smoothed. `center` draws where
    CutMix cuts, from (seed, step).
    """
    without_labels = _without_labels(recipe, recipe.data.pp_train)
    if without_labels is not None:
        return lambda batch, step, replica: without_labels(batch)
    to_model_range = preprocess.device_function(recipe.data.pp_train)
    mixing = {"mixup": recipe.data.mixup, "cutmix": recipe.data.cutmix}

    def prepare(batch, step, replica):
        images, labels = to_model_range(batch["image"]), _class_shares(batch["label"], classes)
        if any(mixing.values()):
            images, labels = mix.blend(images, labels, batch["mix"], center(recipe.seed ^ _MIX_SEED, step), **mixing)
        return images, optim.smooth_labels(labels, recipe.label_smoothing)

    return prepare


def evaluation_inputs(recipe: recipes.Recipe, classes: int) -> Callable:
    """Return a function of a batch to the values of the task, as `training_inputs` without mixing and smoothing."""
    without_labels = _without_labels(recipe, recipe.data.pp_eval)
    if without_labels is not None:
        return without_labels
    to_model_range = preprocess.device_function(recipe.data.pp_eval)

    def prepare(batch):
        return to_model_range(batch["image"]), _class_shares(batch["label"], classes)

    return prepare


def set_normalization(model: ConfiguredModel, pp: str) -> None:
    """Note in a model how a preprocessing string normalizes its input, and warn if its weights know another way."""
    low, high = value_range(preprocess.device_function(pp), model.config.channels)
    # Six digits: single precision makes 0.485 to 0.48500001.
    mean, deviation = ([float(f"{x:.6g}") for x in side] for side in (-low / (high - low), 1.0 / (high - low)))
    known, input_range = of_images(model), model.config.input_range
    if input_range is None:  # otherwise the model normalizes
        model.input_normalization = (mean, deviation)
    if known is not None and not np.allclose(known, (mean, deviation), rtol=1e-4):
        own = operation(known, input_range)
        logging.warning(
            "The weights expect images after %s. The preprocessing of this recipe is %r. To change it, end "
            "--config.data.pp_train in that operation, too: --config.data.pp_eval='%s'",
            own,
            pp,
            "|".join(filter(None, (preprocess.split(pp)[0], own))),
        )


def with_normalization(recipe: recipes.Recipe, operations: Mapping[str, str]) -> recipes.Recipe:
    """Return the recipe with other operations on values at the end of preprocessing strings, by field."""
    for field, new in operations.items():
        host, old = preprocess.split(recipes.get(recipe, field))
        before, after = (value_range(preprocess.device_function(pp), 3) for pp in (old, new))
        if not np.allclose(before, after, rtol=1e-4):
            recipe = recipes.replace(recipe, {field: "|".join(filter(None, (host, new)))})
            logging.info("%s ends in %s, as the weights were trained. --config.%s=... sets another.", field, new, field)
    return recipe


def _without_labels(recipe: recipes.Recipe, pp: str) -> Callable | None:
    """Return the function of a batch to the values of a task that reads no labels; None for classification."""
    created = tasks.create(recipe)
    if isinstance(created, tasks.ClassificationTask):
        return None
    task = cast(tasks.HiddenPatchesTask, created)
    to_model_range = preprocess.device_function(pp)
    return lambda batch: task.values(to_model_range(batch["image"]), batch)


def _class_shares(labels, classes: int):
    """Return labels as float32 `[b, classes]`, from class numbers `[b]` or values per class."""
    if len(labels.shape) == 1:
        return ops.one_hot(labels, classes, dtype="float32")
    return ops.cast(labels, "float32")
