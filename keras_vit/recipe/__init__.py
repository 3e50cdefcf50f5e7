"""Recipes: everything that decides the result of a training run, as nested dataclasses."""

from keras_vit.recipe.choices import pretrained, with_image_size, with_variant, with_weights
from keras_vit.recipe.conversion import check, from_dict, get, nearest_multiple, override, replace, to_dict
from keras_vit.recipe.fields import Data, Model, Optim, Recipe, Schedule
from keras_vit.recipe.model import (
    create_model,
    describe_model,
    masked_config,
    model_arguments,
    resolve,
    weights_path,
)
from keras_vit.recipe.task import MAE, Classification, Distillation, MaskedPatch, Task, parse_task

__all__ = [
    "Classification",
    "Data",
    "Distillation",
    "MAE",
    "MaskedPatch",
    "Model",
    "Optim",
    "Recipe",
    "Schedule",
    "Task",
    "check",
    "create_model",
    "model_arguments",
    "resolve",
    "describe_model",
    "from_dict",
    "get",
    "masked_config",
    "parse_task",
    "nearest_multiple",
    "override",
    "pretrained",
    "replace",
    "to_dict",
    "weights_path",
    "with_image_size",
    "with_variant",
    "with_weights",
]
