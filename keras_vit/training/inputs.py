"""From a batch of the input pipeline to what the network and the loss take, on the device."""

from collections.abc import Callable

import tensorflow as tf
from keras import ops

from keras_vit import optim
from keras_vit import recipe as recipes
from keras_vit.data import eval_batches, mix, preprocess, train_batches

_MIX_SEED = 0x6D6978  # "mix": keeps these draws apart from those of dropout


def mix_center(seed: int, step):
    """Returns where CutMix cuts in a step, float32 `[2]` in [0, 1)."""
    seed = tf.stack([tf.constant(seed, tf.int32), tf.cast(step, tf.int32)])
    return tf.random.stateless_uniform([2], seed)


def training_inputs(recipe: recipes.Recipe, classes: int, center: Callable = mix_center) -> Callable:
    """Returns a function of (batch, step, replica) to (images, labels).

    Args:
        recipe: of the run.
        classes: number of classes.
        center: function of (seed, step) that draws where CutMix cuts, as `mix_center` does.

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
    """Returns a function of a batch to (images, labels), as `training_inputs` without mixing and smoothing."""
    to_model_range = preprocess.device_function(recipe.data.pp_eval)

    def prepare(batch):
        return to_model_range(batch["image"]), _class_shares(batch["label"], classes)

    return prepare


def check_images(recipe: recipes.Recipe, train_source, eval_source) -> int:
    """Returns the number of channels of the images, after checking that both pipelines give what the model takes.

    Raises:
        ValueError: if a size differs from `model.image_size`, or the sources disagree on classes.
    """
    data, size = recipe.data, recipe.model.image_size
    if train_source.num_classes != eval_source.num_classes:
        raise ValueError(
            f"Both splits must have the same classes. Received: {train_source.num_classes} in {data.train_split!r}, "
            f"{eval_source.num_classes} in {data.eval_split!r}."
        )
    shapes = {
        "data.pp_train": train_batches(train_source, data.pp_train, batch_size=1).element_spec["image"].shape[1:],
        "data.pp_eval": eval_batches(eval_source, data.pp_eval, batch_size=1).element_spec["image"].shape[1:],
    }
    for name, shape in shapes.items():
        if tuple(shape[:2]) != (size, size):
            raise ValueError(
                f"{name} must give images of model.image_size={size} by {size}. It gives {shape[0]} by {shape[1]}: "
                f"change model.image_size, or end it in an operation such as resize({size})."
            )
    train_shape, eval_shape = shapes.values()
    if train_shape[2] != eval_shape[2]:
        raise ValueError(
            f"data.pp_train gives {train_shape[2]} channels, data.pp_eval {eval_shape[2]}: make them agree."
        )
    return train_shape[2]


def _class_shares(labels, classes: int):
    """Returns labels as float32 `[b, classes]`, whether they come as class numbers or as one value a class."""
    if len(labels.shape) == 1:
        return ops.one_hot(labels, classes, dtype="float32")
    return ops.cast(labels, "float32")
