"""Recipes: everything that determines the result of a training run, as nested dataclasses."""

from keras_vit.optim.config import Optim, Schedule
from keras_vit.recipe.choices import named_checkpoint, pretrained, with_image_size, with_variant, with_weights
from keras_vit.recipe.choices import with_scaled_sizes as with_scaled_sizes
from keras_vit.recipe.conversion import check, from_dict, get, override, replace, to_dict
from keras_vit.recipe.conversion import nearest_multiple as nearest_multiple
from keras_vit.recipe.fields import OF_TIME as OF_TIME
from keras_vit.recipe.fields import Data, Model, Recipe
from keras_vit.recipe.model import build_model
from keras_vit.recipe.model import describe_model as describe_model
from keras_vit.recipe.model import masked_config as masked_config
from keras_vit.recipe.model import model_arguments as model_arguments
from keras_vit.recipe.model import model_arguments_for as model_arguments_for
from keras_vit.recipe.model import resolve as resolve
from keras_vit.recipe.model import weights_path as weights_path
from keras_vit.recipe.task import Task
from keras_vit.recipe.tasks import (
    MAE,
    Classification,
    Distillation,
    MaskedPatch,
    MultiLabel,
    Regression,
    Segmentation,
    parse_task,
)

__all__ = [
    "Classification",
    "Data",
    "Distillation",
    "MAE",
    "MaskedPatch",
    "Model",
    "MultiLabel",
    "Optim",
    "Recipe",
    "Regression",
    "Schedule",
    "Segmentation",
    "Task",
    "build_model",
    "check",
    "from_dict",
    "get",
    "parse_task",
    "named_checkpoint",
    "override",
    "pretrained",
    "replace",
    "to_dict",
    "with_image_size",
    "with_variant",
    "with_weights",
]
