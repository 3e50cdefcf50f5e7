"""Preprocessing on the device: from a batch of the input pipeline to the values that a task takes."""

from collections.abc import Callable
from typing import cast

import tensorflow as tf
from keras import ops

from keras_vit import optim
from keras_vit import recipe as recipes
from keras_vit.data import mix, preprocess
from keras_vit.training import tasks

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
