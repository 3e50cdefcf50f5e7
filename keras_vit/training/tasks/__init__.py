"""Tasks that the training loop trains: classification, distillation, and pre-training without labels."""

from typing import cast

from keras_vit import recipe as recipes
from keras_vit.models import MAEConfig, MaskedPatchConfig
from keras_vit.training.tasks.distillation import DistillationTask, Teacher, check_teacher, open_teacher, teacher_record
from keras_vit.training.tasks.mae import MAETask
from keras_vit.training.tasks.masked_patch import MaskedPatchTask
from keras_vit.training.tasks.task import ClassificationTask, HiddenPatchesTask, Task, evaluation, loss_and_score

__all__ = [
    "ClassificationTask",
    "DistillationTask",
    "HiddenPatchesTask",
    "MAETask",
    "MaskedPatchTask",
    "Task",
    "Teacher",
    "check_teacher",
    "create",
    "evaluation",
    "loss_and_score",
    "open_teacher",
    "teacher_record",
]


def create(recipe: recipes.Recipe, teacher: Teacher | None = None) -> Task:
    """Return the task of a recipe. Only the training of a distillation needs the teacher."""
    task = recipe.task
    if isinstance(task, recipes.MAE):
        return MAETask(cast(MAEConfig, recipes.masked_config(recipe)), task.normalize_pixels)
    if isinstance(task, recipes.MaskedPatch):
        return MaskedPatchTask(cast(MaskedPatchConfig, recipes.masked_config(recipe)))
    if isinstance(task, recipes.Distillation):
        return DistillationTask(teacher, task.temperature)
    return ClassificationTask(recipe.loss)
