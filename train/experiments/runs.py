"""Search for runs, and the metrics of their evaluations."""

import dataclasses
import glob
import itertools
import os
from collections.abc import Sequence

from absl import logging

from keras_vit.evaluators import Suite
from keras_vit.runs import Run, run_directory
from keras_vit.util import storage
from keras_vit.util.metrics import Metric

RUNS = "runs"  # the folder of a sweep's runs
_COUNTS = ("step", "examples", "last_step")
_DEPTH = 3  # levels of folders that are searched for runs: a folder of sweeps has runs in SWEEP/runs/NAME


def read_runs(paths: Sequence[str]) -> list[Run]:
    """Return all runs in the given paths, which may be runs, sweeps, or folders of runs and sweeps.

    Other paths and damaged runs are skipped with a warning, if at least one run can be read.

    Raises:
        FileNotFoundError: If no path is a run or a sweep.
        ValueError: If all runs are damaged.

    Example:
    >>> [run.path for run in read_runs(["runs/digits"])]
    ['runs/digits']
    """
    found, errors = dict[str, Run](), dict[str, Exception]()
    for path in (os.path.normpath(storage.fetched(path, small=True)) for path in paths):
        folders = [os.path.join(glob.escape(path), *"*" * depth) for depth in range(_DEPTH + 1)]
        configs = (sorted(glob.glob(os.path.join(folder, run_directory.CONFIG))) for folder in folders)
        runs = list(map(os.path.dirname, itertools.chain(*configs))) or [path]
        for run in runs[:1] if runs[0] == path else runs:
            try:
                found[run] = found.get(run) or _readable(run)
            except (OSError, ValueError) as error:
                errors[run] = error
    if errors and not found:
        raise next(iter(errors.values()))
    for run, reason in errors.items():
        logging.warning("%s is skipped: %s", run, reason)
    return list(found.values())


def _readable(path: str) -> Run:
    """Return the run in a directory. Raises an OSError or a ValueError if its record cannot be read."""
    if not os.path.exists(os.path.join(path, run_directory.CONFIG)):
        raise FileNotFoundError(
            f"There is no run in {path!r}: expected a file {run_directory.CONFIG}. Name a run, a sweep, or a folder of "
            "runs."
        )
    run = Run(path)
    run.metrics  # noqa: B018  raises an error for the recipe of another version
    return run


def metric_of_run(run: Run, name: str = "") -> Metric:
    """Return a metric of a run by its name in `metrics.jsonl`; see `metric_of`."""
    return metric_of(run.metrics, run.config["recipe"].get("evaluators", ()), name)


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
