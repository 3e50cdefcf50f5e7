"""Preprocessing on the device: from a batch of the input pipeline to images and labels for the model and the loss."""

from collections.abc import Callable

import tensorflow as tf
from keras import ops

from keras_vit import optim
from keras_vit import recipe as recipes
from keras_vit.data import mix, preprocess

_MIX_SEED = 0x6D6978  # "mix": keeps these draws apart from those of dropout


def mix_center(seed: int, step: tf.Tensor) -> tf.Tensor:
    """Return where CutMix cuts in a step, float32 `[2]` in [0, 1)."""
    key = tf.stack([tf.constant(seed, tf.int32), tf.cast(step, tf.int32)])
    return tf.random.stateless_uniform([2], key)


def training_inputs(recipe: recipes.Recipe, classes: int, center: Callable = mix_center) -> Callable:
    """Return a function of (batch, step, replica) to (images, labels).

    Args:
        recipe: The recipe.
        classes: Number of classes.
        center: Function of (seed, step) that draws where CutMix cuts, as `mix_center` does.

    Returns:
        A function whose images are `[b, height, width, channels]` float32 in the model's range and whose labels are
        `[b, classes]` float32: mixed where the recipe mixes, then smoothed.
    """
    to_model_range = preprocess.device_function(recipe.data.pp_train)
    mixing = {"mixup": recipe.data.mixup, "cutmix": recipe.data.cutmix}

    def prepare(batch, step, replica):
        images, labels = to_model_range(batch["image"]), _class_shares(batch["label"], classes)
        if any(mixing.values()):
            images, labels = mix.blend(images, labels, batch["mix"], center(recipe.seed ^ _MIX_SEED, step), **mixing)
        return images, optim.smooth_labels(labels, recipe.label_smoothing)

    return prepare


def evaluation_inputs(recipe: recipes.Recipe, classes: int) -> Callable:
    """Return a function of a batch to (images, labels), as `training_inputs` without mixing and smoothing."""
    to_model_range = preprocess.device_function(recipe.data.pp_eval)

    def prepare(batch):
        return to_model_range(batch["image"]), _class_shares(batch["label"], classes)

    return prepare


def _class_shares(labels, classes: int):
    """Return labels as float32 `[b, classes]`, from class numbers `[b]` or values per class."""
    if len(labels.shape) == 1:
        return ops.one_hot(labels, classes, dtype="float32")
    return ops.cast(labels, "float32")
