"""VTAB-1k: nineteen classification tasks with 1,000 training examples each, and how their results are averaged.

References:
    Zhai et al. 2019, "A Large-scale Study of Representation Learning with the Visual Task Adaptation Benchmark",
    https://arxiv.org/abs/1910.04867
"""

from collections.abc import Mapping, Sequence

import numpy as np

from keras_vit import _checks

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


def summarize(accuracies: Mapping[str, float]) -> dict:
    """Means of the groups and of all tasks.

    Args:
        accuracies: Test accuracy of each task that was run.

    Returns:
        `"natural"`, `"specialized"`, `"structured"`: mean over the tasks of the group; `"mean"`: over all nineteen
        tasks. A mean of which a task is missing is None. `"missing"`: the tasks without a result.

    Raises:
        ValueError: If there is no such task.
    """
    check_tasks(accuracies)
    means = {group: _mean(accuracies, tasks) for group, tasks in GROUPS.items()}
    missing = tuple(task for task in TASKS if task not in accuracies)
    return {**means, "mean": _mean(accuracies, TASKS), "missing": missing}


def check_tasks(tasks: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of tasks, each of which exists."""
    return tuple(_checks.existing(f"task {task!r} in VTAB", task, TASKS) for task in tasks)


def _mean(accuracies: Mapping[str, float], tasks: Sequence[str]) -> float | None:
    if any(task not in accuracies for task in tasks):
        return None
    return float(np.mean([accuracies[task] for task in tasks]))
