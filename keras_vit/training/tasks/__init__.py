"""Tasks that the training loop trains: classification, and pre-training without labels."""

from typing import cast

from keras_vit import recipe as recipes
from keras_vit.models import MAEConfig, MaskedPatchConfig
from keras_vit.training.tasks.classification import ClassificationTask
from keras_vit.training.tasks.mae import MAETask
from keras_vit.training.tasks.masked_patch import MaskedPatchTask
from keras_vit.training.tasks.task import HiddenPatchesTask, Task

__all__ = ["ClassificationTask", "HiddenPatchesTask", "MAETask", "MaskedPatchTask", "Task", "create"]


def create(recipe: recipes.Recipe) -> Task:
    """Return the task of a recipe."""
    task = recipes.parse_task(recipe.task)
    if isinstance(task, recipes.MAE):
        return MAETask(cast(MAEConfig, recipes.masked_config(recipe)), task.normalize_pixels)
    if isinstance(task, recipes.MaskedPatch):
        return MaskedPatchTask(cast(MaskedPatchConfig, recipes.masked_config(recipe)))
    return ClassificationTask(recipe.loss)
