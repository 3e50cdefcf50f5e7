"""Recipes: everything that determines the result of a training run, as nested dataclasses."""

from keras_vit.optim.config import Optim, Schedule
from keras_vit.recipe.choices import named_checkpoint as named_checkpoint
from keras_vit.recipe.choices import pretrained
from keras_vit.recipe.choices import with_image_size as with_image_size
from keras_vit.recipe.choices import with_scaled_sizes as with_scaled_sizes
from keras_vit.recipe.choices import with_variant as with_variant
from keras_vit.recipe.choices import with_weights as with_weights
from keras_vit.recipe.conversion import check, replace
from keras_vit.recipe.conversion import from_dict as from_dict
from keras_vit.recipe.conversion import get as get
from keras_vit.recipe.conversion import nearest_multiple as nearest_multiple
from keras_vit.recipe.conversion import override as override
from keras_vit.recipe.conversion import to_dict as to_dict
from keras_vit.recipe.fields import OF_TIME as OF_TIME
from keras_vit.recipe.fields import Data, Model, Recipe
from keras_vit.recipe.model import build_model as build_model
from keras_vit.recipe.model import describe_model as describe_model
from keras_vit.recipe.model import model_arguments_for as model_arguments_for
from keras_vit.recipe.model import resolve as resolve
from keras_vit.recipe.model import weights_path as weights_path
from keras_vit.tasks import (
    MAE,
    Classification,
    Distillation,
    MaskedPatch,
    MultiLabel,
    Regression,
    Segmentation,
    Task,
)
from keras_vit.tasks import parse_task as parse_task

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
    "check",
    "pretrained",
    "replace",
]
