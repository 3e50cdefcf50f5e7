"""Runs and their metrics, read from run directories."""

import dataclasses
import functools
import glob
import itertools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import logging

from keras_vit.evaluators import Suite
from keras_vit.runs import checkpoints, run_directory
from keras_vit.util import locks, storage
from keras_vit.util.metrics import Metric

if TYPE_CHECKING:
    from keras_vit.recipe import Recipe

RUNS = "runs"  # the folder of a sweep's runs
_COUNTS = ("step", "examples", "last_step")
_DEPTH = 3  # levels of folders that are searched for runs: a folder of sweeps has runs in SWEEP/runs/NAME


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """Record of a run in its directory.

    Attributes:
        path: Run directory.
        config: Content of `config.json`.
        lines: Lines of `metrics.jsonl`.

    Example:
    >>> RunRecord.read("runs/digits").state
    'finished'
    """

    path: str
    config: dict[str, Any]
    lines: list[dict[str, Any]]

    @classmethod
    def read(cls, path: str) -> "RunRecord":
        """Read a run. Raises OSError or ValueError if `path` is not a run directory, or the run is damaged."""
        record = cls(path, run_directory.read_config(path), run_directory.read_metrics(path))
        if not isinstance(record.config["recipe"].get("total_steps"), int) or not record.metrics:
            raise ValueError(f"{path}/{run_directory.CONFIG} must contain a recipe with the field 'total_steps'.")
        return record

    @functools.cached_property
    def recipe(self) -> "Recipe":
        """The recipe."""
        from keras_vit import recipe as recipes

        return recipes.from_dict(run_directory.recipe_of(self.config))

    @functools.cached_property
    def metrics(self) -> Sequence[Metric]:
        """Loss, score and other metrics of the task."""
        stated = self.config.get("metrics")  # absent in runs of earlier versions
        return [Metric(**metric) for metric in stated] if stated else self.recipe.task.metrics

    def metric(self, name: str = "") -> Metric:
        """Return a metric by its name in `metrics.jsonl`; see `metric_of`."""
        return metric_of(self.metrics, self.config["recipe"].get("evaluators", ()), name)

    @property
    def state(self) -> str:
        """`"finished"`, `"running, step 40 of 100"` or `"step 40 of 100"`."""
        if is_finished(self.path):
            return "finished"
        total, step = self.config["recipe"]["total_steps"], self.step
        if locks.is_taken(self.path):
            return f"running, step {step:,} of {total:,}"
        return f"step {step:,} of {total:,}" + (", without a model" if step >= total else "")

    @property
    def step(self) -> int:
        """Last step that was logged or saved; 0 without any."""
        saved = checkpoints.complete_steps(os.path.join(self.path, run_directory.CHECKPOINTS))
        return max([0, *(line["step"] for line in self.lines), *saved])


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
    for path in (os.path.normpath(storage.fetched(path, small=True)) for path in paths):
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
    """Return the metrics of a run's chosen weights, or the last value of a metric that was not evaluated up to them."""
    found: dict[str, float] = {}
    chosen = run_directory.last_evaluation(path).get("step", 0)
    for line in sorted(run_directory.read_metrics(path), key=lambda line: line["step"] <= chosen):
        if "loss" not in line:  # lines of training steps have a loss
            found |= {name: value for name, value in line.items() if isinstance(value, (int, float))}
    return {name: value for name, value in found.items() if name not in _COUNTS}


def metric_of(metrics: Sequence[Metric], evaluators: Sequence[str], name: str = "") -> Metric:
    """Return a metric by its name in `metrics.jsonl`, given the metrics of the task and the evaluators of the recipe.

    The default is the metric that determines the best checkpoint.
    """
    name = name or f"eval_{metrics[1].name}"
    suite = Suite(evaluators)
    if name.rpartition("/")[0] in suite.evaluators:
        return dataclasses.replace(suite.metric(name), name=name)
    known = {metric.name: metric for metric in metrics}
    return dataclasses.replace(known.get(name.removeprefix("eval_").removeprefix("test_"), Metric(name)), name=name)
