"""Runs and their metrics, read from run directories."""

import dataclasses
import glob
import itertools
import os
from collections.abc import Sequence
from typing import Any

from absl import logging

from keras_vit import _lock, _storage
from keras_vit import recipe as recipes
from keras_vit._metrics import Metric
from keras_vit.evaluators import Suite
from keras_vit.recipe import Recipe
from keras_vit.training import run_directory

RUNS = "runs"  # the folder of a sweep's runs
_COUNTS = ("step", "examples")
_DEPTH = 3  # levels of folders that are searched for runs: a folder of sweeps has runs in SWEEP/runs/NAME


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """Record of a run in its directory.

    Attributes:
        path: Run directory.
        config: Content of `config.json`.
        lines: Lines of `metrics.jsonl`.
        recipe: The recipe.

    Example:
    >>> RunRecord.read("runs/digits").state
    'finished'
    """

    path: str
    config: dict[str, Any]
    lines: list[dict[str, Any]]
    recipe: Recipe

    @classmethod
    def read(cls, path: str) -> "RunRecord":
        """Read a run. Raises OSError or ValueError if `path` is not a run directory, or the run is damaged."""
        config = run_directory.read_config(path)
        recipe = recipes.from_dict(run_directory.recipe_of(config))
        return cls(path, config, run_directory.read_metrics(path), recipe)

    @property
    def state(self) -> str:
        """`"finished"`, `"running, step 40 of 100"` or `"step 40 of 100"`."""
        if is_finished(self.path):
            return "finished"
        running, step = _lock.is_taken(self.path), max((line["step"] for line in self.lines), default=0)
        return f"{'running, ' if running else ''}step {step:,} of {self.recipe.total_steps:,}"


def read_runs(paths: Sequence[str]) -> list[RunRecord]:
    """Return all runs in the given paths, which may be runs, sweeps, or folders of runs and sweeps.

    Other paths and damaged runs are skipped with a warning, if at least one run can be read.

    Raises:
        FileNotFoundError: If no path is a run or a sweep.
        ValueError: If all runs are damaged.

    Example:
    >>> [record.path for record in read_runs(["runs/digits"])]
    ['runs/digits']
    """
    found, errors = dict[str, RunRecord](), list[Exception]()
    for path in (os.path.normpath(_storage.fetched(path, small=True)) for path in paths):
        folders = [os.path.join(glob.escape(path), *"*" * depth) for depth in range(_DEPTH + 1)]
        configs = (sorted(glob.glob(os.path.join(folder, run_directory.CONFIG))) for folder in folders)
        runs = list(map(os.path.dirname, itertools.chain(*configs))) or [path]
        for run in runs[:1] if runs[0] == path else runs:
            try:
                found[run] = found.get(run) or RunRecord.read(run)
            except (OSError, ValueError) as error:
                logging.warning("%s is skipped: %s", run, error)
                errors.append(error)
    if errors and not found:
        raise errors[0]
    return list(found.values())


def is_finished(path: str) -> bool:
    """Return whether a run has written its model."""
    return os.path.exists(os.path.join(path, run_directory.MODEL))


def final_metrics(path: str) -> dict[str, float]:
    """Return the last value of each metric of a run's evaluations."""
    found: dict[str, float] = {}
    for line in run_directory.read_metrics(path):
        if "loss" not in line:  # lines of training steps have a loss
            found |= {name: value for name, value in line.items() if isinstance(value, (int, float))}
    return {name: value for name, value in found.items() if name not in _COUNTS}


def metric_of(recipe: Recipe, name: str = "") -> Metric:
    """Return a metric by its name in `metrics.jsonl`. The default is the metric that determines the best checkpoint."""
    name = name or f"eval_{recipe.task.score.name}"
    suite = Suite(recipe.evaluators)
    if name.rpartition("/")[0] in suite.evaluators:
        return dataclasses.replace(suite.metric(name), name=name)
    known = {metric.name: metric for metric in recipe.task.metrics}
    return dataclasses.replace(known.get(name.removeprefix("eval_").removeprefix("test_"), Metric(name)), name=name)
