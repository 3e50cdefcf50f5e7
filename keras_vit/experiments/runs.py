"""Runs and their metrics, as their directories record them."""

import dataclasses
import os

from keras_vit._metrics import Metric
from keras_vit.evaluators import Suite
from keras_vit.recipe import Recipe
from keras_vit.training import run_directory

RUNS = "runs"  # the folder of a sweep's runs
_COUNTS = ("step", "examples")


def is_finished(path: str) -> bool:
    """Return whether a run has written its model."""
    return os.path.exists(os.path.join(path, run_directory.MODEL))


def final_metrics(path: str) -> dict[str, float]:
    """Return the last value of every metric of a run's evaluations."""
    found: dict[str, float] = {}
    for line in run_directory.read_metrics(path):
        if "loss" not in line:  # a line of training
            found |= {name: value for name, value in line.items() if isinstance(value, (int, float))}
    return {name: value for name, value in found.items() if name not in _COUNTS}


def metric_of(recipe: Recipe, name: str = "") -> Metric:
    """Return the metric that `metrics.jsonl` has under a name; by default the one that decides which step is best."""
    name = name or f"eval_{recipe.task.score.name}"
    suite = Suite(recipe.evaluators)
    if name.rpartition("/")[0] in suite.evaluators:
        return dataclasses.replace(suite.metric(name), name=name)
    known = {metric.name: metric for metric in recipe.task.metrics}
    return dataclasses.replace(known.get(name.removeprefix("eval_"), Metric(name)), name=name)
