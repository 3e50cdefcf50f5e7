"""VTAB-1k: nineteen classification tasks with 1,000 training examples each, and their mean accuracies.

References:
    Zhai et al. 2019, "A Large-scale Study of Representation Learning with the Visual Task Adaptation Benchmark",
    https://arxiv.org/abs/1910.04867
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from absl import logging

from keras_vit.evaluators import linear_probe
from keras_vit.evaluators.evaluation import Context, Evaluator, Result, register
from keras_vit.evaluators.features import check_splits
from keras_vit.util import checks

GROUPS = {
    "natural": ("caltech101", "cifar100", "dtd", "flowers102", "pets", "sun397", "svhn"),
    "specialized": ("patch_camelyon", "eurosat", "resisc45", "diabetic_retinopathy"),
    "structured": (
        "clevr_count",
        "clevr_distance",
        "dmlab",
        "kitti_distance",
        "dsprites_location",
        "dsprites_orientation",
        "smallnorb_azimuth",
        "smallnorb_elevation",
    ),
}
TASKS = tuple(task for tasks in GROUPS.values() for task in tasks)
TRAIN, VALIDATION, ALL, TEST = "train800", "val200", "train800val200", "test"


@register
@dataclasses.dataclass(kw_only=True)
class Vtab(Evaluator):
    """VTAB-1k on frozen features, with one linear classifier per task.

    The 200 validation examples of a task determine the regularization. Papers report fine-tuning instead, which
    `keras-vit vtab` does. This evaluator is the cheaper variant for use during training.

    Attributes:
        tasks: Name of a task, or several names. By default all nineteen tasks.
        pp: Preprocessing string. The benchmark resizes every image to a fixed size.
        solver: `"lbfgs"` or `"ridge"`.
        options: Options of the sources, joined by `&`, such as `"data_dir='/data'&download=True"`.
    """

    name: ClassVar = "vtab"
    tasks: str | Sequence[str] | None = None
    pp: str | None = None
    solver: str = "lbfgs"
    options: str = ""

    def __post_init__(self):
        tasks = TASKS if self.tasks is None else self.tasks
        if not isinstance(tasks, (str, Sequence)) or not tasks:
            raise ValueError(f"`tasks` must be names of tasks, or None for all tasks. Received: tasks={self.tasks!r}.")
        self.tasks = self._tasks = check_tasks([tasks] if isinstance(tasks, str) else tasks)
        checks.optional_text("pp", self.pp)
        checks.choice("solver", self.solver, linear_probe.SOLVERS)
        if self.options != "":
            checks.optional_text("options", self.options)

    def splits(self, context: Context, task: str) -> list[tuple[str, str, str]]:
        """Return source, split and preprocessing string of the training, validation and test data."""
        source = source_of(task, self.options)
        return [(source, split, self.pp or context.preprocess) for split in (TRAIN, VALIDATION, TEST)]

    def check(self, context: Context) -> None:
        """Open the data. Tasks without data are logged here, and listed as missing in the result."""
        context.require_features()
        for task in self._tasks:
            try:
                check_splits(context, self.splits(context, task))
            except (OSError, ImportError) as error:
                logging.warning("The results will not contain the task %s: %s", task, first_line(error))

    def measure(self, context: Context) -> Result:
        accuracies, missing = {}, {}
        for task in self._tasks:
            try:
                found = [context.features(*split) for split in self.splits(context, task)]
            except (OSError, ImportError) as error:
                missing[task] = first_line(error)
                continue
            (train, num_classes), (validation, _), (test, _) = found
            probe = linear_probe.LinearProbe(solver=self.solver)
            accuracies[task] = probe.evaluate(train, test, num_classes, validation)["accuracy"]
        return Result({**accuracies, **means(accuracies)}, missing)


def means(accuracies: Mapping[str, float]) -> dict[str, float | None]:
    """Return the mean accuracy of each group, and `"mean"` over all tasks. A mean with a missing task is None."""
    groups = {**GROUPS, "mean": TASKS}
    return {
        name: float(np.mean([accuracies[task] for task in tasks])) if set(tasks) <= set(accuracies) else None
        for name, tasks in groups.items()
    }


def source_of(task: str, options: str = "") -> str:
    """Return the source of a task for `keras_vit.data.open_source`."""
    return f"vtab:{task}#{options}" if options else f"vtab:{task}"


def check_tasks(tasks: Sequence[str]) -> tuple[str, ...]:
    """Return the names of tasks. Raise an error if a task does not exist."""
    return tuple(checks.existing(f"task {task!r} in VTAB", task, TASKS) for task in tasks)


def first_line(error: Exception) -> str:
    """Return the first line of an error, or the type of an error without a message."""
    return (str(error) or type(error).__name__).splitlines()[0]
