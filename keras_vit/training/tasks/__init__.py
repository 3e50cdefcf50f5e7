"""Learning tasks: classification, regression, segmentation, distillation, and pre-training without labels."""

from typing import TYPE_CHECKING

from keras_vit import recipe as recipes
from keras_vit.training.tasks.classification import Classification, MultiLabel
from keras_vit.training.tasks.distillation import Distillation, Teacher
from keras_vit.training.tasks.mae import MAE
from keras_vit.training.tasks.masked_patch import MaskedPatch
from keras_vit.training.tasks.regression import Regression
from keras_vit.training.tasks.segmentation import Segmentation
from keras_vit.training.tasks.task import Shown, Task, evaluation, loss_and_metrics

if TYPE_CHECKING:
    from keras_vit.data.sources import Source

__all__ = [
    "TASKS",
    "Classification",
    "Distillation",
    "MAE",
    "MaskedPatch",
    "MultiLabel",
    "Regression",
    "Segmentation",
    "Shown",
    "Task",
    "Teacher",
    "create",
    "evaluation",
    "loss_and_metrics",
]

TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "multi_label": MultiLabel,
    "distillation": Distillation,
    "regression": Regression,
    "segmentation": Segmentation,
    "masked_patch": MaskedPatch,
    "mae": MAE,
}


def create(recipe: recipes.Recipe, source: "Source | None" = None, outputs: int = 0) -> Task:
    """Return the task of a recipe, for its training split or, without data, for a number of outputs.

    Raises:
        ValueError: If the task cannot learn from the labels of the source.
    """
    if source is not None:
        check_labels(recipe, source)
    return TASKS[recipe.task.name](recipe, source, outputs)


def check_labels(recipe: recipes.Recipe, source: "Source") -> None:
    """Raise a ValueError if a source lacks the labels that the task of a recipe reads."""
    wanted, found = recipe.task.labels, source.label_kind if source.num_outputs else None
    if wanted in (None, found):
        return
    known = {None: "'masked_patch'", "class": "'classification'", "classes": "'multi_label' with loss='sigmoid'"}
    known |= {"values": "'regression'", "mask": "'segmentation'"}
    has = f"labels of the kind {found!r}" if found else "no labels"
    raise ValueError(
        f"task={str(recipe.task)!r} learns from labels of the kind {wanted!r}. Received: data.source="
        f"{recipe.data.source!r}, which has {has}. Pass other data, or a task for these data, such as "
        f"task={known[found]}."
    )
