"""Learning tasks: classification, regression, segmentation, distillation, and pre-training without labels.

In files and on the command line, a task is a text: `"mae(mask_ratio=0.75)"`.
"""

import copy
from typing import TYPE_CHECKING, Any

from keras_vit.tasks.classification import Classification as Classification
from keras_vit.tasks.distillation import Distillation as Distillation
from keras_vit.tasks.mae import MAE as MAE
from keras_vit.tasks.masked import MaskedTask as MaskedTask
from keras_vit.tasks.masked_patch import MaskedPatch as MaskedPatch
from keras_vit.tasks.multi_label import MultiLabel as MultiLabel
from keras_vit.tasks.regression import Regression as Regression
from keras_vit.tasks.segmentation import Segmentation as Segmentation
from keras_vit.tasks.task import Shown as Shown
from keras_vit.tasks.task import Task as Task
from keras_vit.tasks.task import evaluation as evaluation
from keras_vit.tasks.task import loss_and_metrics as loss_and_metrics
from keras_vit.util import literal_calls

if TYPE_CHECKING:
    from keras_vit.data.sources import Source

TASKS: dict[str, Any] = {
    task.name: task for task in (Classification, MultiLabel, Distillation, Regression, Segmentation, MaskedPatch, MAE)
}


def parse_task(text: str | Task) -> Task:
    """Parse a task, such as `"classification"` or `"mae(mask_ratio=0.5)"`. `str(task)` is the inverse."""
    if isinstance(text, Task):
        return text
    calls = literal_calls.parse(text, "task", "mae(mask_ratio=0.75)")
    if len(calls) != 1:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, with its arguments. Received: task={text!r}")
    task, _ = calls[0].create(calls[0].function(TASKS, "task"))
    return task


def bind(recipe: Any, source: "Source | None" = None, outputs: int = 0) -> Task:
    """Return a copy of the task of a recipe for a run: with its training split or, without data, a number of outputs.

    Raises:
        ValueError: If the task cannot learn from the labels of the source.
    """
    if source is not None:
        _check_labels(recipe, source)
    task = copy.copy(recipe.task)
    task.recipe, task.outputs = recipe, outputs if source is None else source.num_outputs
    task.prepare(source)
    return task


def _check_labels(recipe: Any, source: "Source") -> None:
    """Raise a ValueError if a source lacks the labels that the task of a recipe reads."""
    wanted, found = recipe.task.labels, source.label_kind if source.num_outputs else None
    if wanted in (None, found):
        return
    suitable = next(task for task in TASKS.values() if task.labels == found)
    loss = "" if recipe.loss in suitable.losses else f" with loss={suitable.losses[0]!r}"
    has = f"labels of the kind {found!r}" if found else "no labels"
    raise ValueError(
        f"task={str(recipe.task)!r} learns from labels of the kind {wanted!r}. Received: data.source="
        f"{recipe.data.source!r}, which has {has}. Pass other data, or a task for these data, such as "
        f"task={suitable.name!r}{loss}."
    )
