"""Preprocessing on the device: turns a batch of the input pipeline into the inputs of a task."""

from collections.abc import Callable

import tensorflow as tf

from keras_vit import optim, outputs
from keras_vit.data import mix, preprocess
from keras_vit.training import tasks

_MIX_SEED = 0x6D6978  # "mix": makes these draws independent of dropout


def mix_center(seed: int, step: tf.Tensor) -> tf.Tensor:
    """Draw the center of CutMix's box for a step, float32 `[2]` in [0, 1)."""
    key = tf.stack([tf.constant(seed, tf.int32), tf.cast(step, tf.int32)])
    return tf.random.stateless_uniform([2], key)


def training_inputs(task: tasks.Task, center: Callable = mix_center) -> Callable:
    """Return a function that maps (batch, step, replica) to the values of a task.

    The first value is the images, float32 `[b, height, width, channels]` in the model's range. Class labels are mixed
    if the recipe uses MixUp or CutMix, and then smoothed. `center` draws the center of CutMix's box from (seed, step).
    """
    recipe = task.recipe
    to_model_range = preprocess.device_function(recipe.data.pp_train)
    mixing = {"mixup": recipe.data.mixup, "cutmix": recipe.data.cutmix}

    def prepare(batch, step, replica):
        values = task.values(to_model_range(batch["image"]), batch)
        if not outputs.of(recipe.task.labels).has_probabilities:
            return values
        images, labels = values
        if any(mixing.values()):
            images, labels = mix.blend(images, labels, batch["mix"], center(recipe.seed ^ _MIX_SEED, step), **mixing)
        return images, optim.smooth_labels(labels, recipe.label_smoothing)

    return prepare


def evaluation_inputs(task: tasks.Task) -> Callable:
    """Return a function that maps a batch to the values of a task: `training_inputs` without mixing and smoothing."""
    to_model_range = preprocess.device_function(task.recipe.data.pp_eval)
    return lambda batch: task.values(to_model_range(batch["image"]), batch)
