"""Comparison of runs: results, and the fields, data and versions that differ."""

import glob
import os
import statistics
from collections.abc import Sequence

from absl import logging

from keras_vit import recipe as recipes
from keras_vit._metrics import Metric
from keras_vit.experiments.runs import RUNS, final_metrics, is_finished, metric_of
from keras_vit.experiments.table import Row, Table
from keras_vit.training import run_directory, run_fields


def compare(paths: Sequence[str]) -> Table:
    """Return a table with a row per run: its results, and the fields, data and versions in which the runs differ.

    Args:
        paths: Run directories, and directories of sweeps, which stand for all of their runs. Other paths and damaged
            runs are skipped with a warning.

    Raises:
        FileNotFoundError: If no path is a run or a sweep.
        ValueError: If only one run is given, or all are damaged.

    Example:
    >>> print(compare(["runs/adamw", "runs/sgd"]).markdown())  # doctest: +SKIP
    """
    runs, errors = dict[str, tuple[Row, dict[str, Metric]]](), list[Exception]()
    for path in paths:
        of_sweep = sorted(glob.glob(os.path.join(glob.escape(path), RUNS, "*", run_directory.CONFIG)))
        for run in map(os.path.normpath, map(os.path.dirname, of_sweep) if of_sweep else [path]):
            try:
                runs[run] = runs.get(run) or _read(run)
            except (OSError, ValueError) as error:
                logging.warning("%s is skipped: %s", run, error)
                errors.append(error)
    if errors and not runs:
        raise errors[0]
    if len(runs) < 2 and len(set(map(os.path.normpath, paths))) < 2:
        raise ValueError(f"Expected at least two runs to compare. Received: {', '.join(paths) or 'none'}.")
    common = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in runs])
    rows = [row for row, _ in runs.values()]
    fields = dict.fromkeys(field for row in rows for field in row.settings)
    different = [
        field for field in fields if any(row.settings.get(field) != rows[0].settings.get(field) for row in rows)
    ]
    for row in rows:
        row.settings = {field: row.settings.get(field) for field in different}
        row.runs = {os.path.relpath(path, common): state for path, state in row.runs.items()}
    metrics = {name: metric for _, found in runs.values() for name, metric in found.items()}
    return Table(rows, list(metrics.values()))


def _read(path: str) -> tuple[Row, dict[str, Metric]]:
    """Return a run with all of its fields, and the metrics of its results."""
    config, lines = run_directory.read_config(path), run_directory.read_metrics(path)
    recipe = recipes.from_dict(run_directory.recipe_of(config))
    versions = {f"version of {name}": text for name, text in config.get("versions", {}).items()}
    step = max((line["step"] for line in lines), default=0)
    state = "finished" if is_finished(path) else f"step {step:,} of {recipe.total_steps:,}"
    results, score = final_metrics(path), metric_of(recipe)
    metrics = {name: metric_of(recipe, name) for name in results}
    for metric, name, choose in (
        (Metric(f"best {score.name}", unit=score.unit), score.name, lambda values: max(values, key=score.goodness)),
        (Metric("training loss"), "loss", lambda values: values[-1]),
        (Metric("images per second"), "images_per_second", lambda values: round(statistics.median(values))),
    ):
        if values := [line[name] for line in lines if name in line]:
            results[metric.name], metrics[metric.name] = choose(values), metric
    return Row(run_fields.fields(config) | versions, {path: state}, [results]), metrics
