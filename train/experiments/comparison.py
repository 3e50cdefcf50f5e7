"""Comparison of runs: their results, and the recipe fields, data and versions in which they differ."""

import os
import statistics
from collections.abc import Sequence
from typing import Any

from keras_vit.runs import Run, run_fields
from keras_vit.util.metrics import Metric

from .runs import final_metrics, metric_of_run, read_runs
from .table import Row, Table


def compare(paths: Sequence[str]) -> Table:
    """Return a table of runs with their results, and the recipe fields, data and versions in which they differ.

    Args:
        paths: Runs, sweeps, or folders of runs and sweeps, see `read_runs`. Other paths and damaged runs are skipped.

    Raises:
        FileNotFoundError: If no path is a run or a sweep.
        ValueError: If there is only one run, or all runs are damaged.

    Example:
    >>> print(compare(["runs/adamw", "runs/sgd"]).markdown())  # doctest: +SKIP
    """
    found = read_runs(paths)
    # Runs of several versions have recipes with different fields.
    versions = {frozenset(field for field in _fields(run) if ".arguments." not in field) for run in found}
    runs = {run.path: _row(run, len(versions) > 1) for run in found}
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


def _fields(run: Run) -> dict[str, Any]:
    return run_fields.flatten(run.config["recipe"])


def _row(run: Run, converted: bool) -> tuple[Row, dict[str, Metric]]:
    """Return a run as a row with all fields, and the metrics of its results."""
    versions = {f"version of {name}": text for name, text in run.config.get("versions", {}).items()}
    results, score = final_metrics(run.path), metric_of_run(run)
    metrics = {name: metric_of_run(run, name) for name in results}
    for metric, name, choose in (
        (Metric(f"best {score.name}", unit=score.unit), score.name, lambda values: max(values, key=score.goodness)),
        (Metric("training loss"), "loss", lambda values: values[-1]),
        (Metric("images per second"), "images_per_second", lambda values: float(f"{statistics.median(values):.3g}")),
    ):
        if values := [line[name] for line in run.lines if name in line]:
            results[metric.name], metrics[metric.name] = choose(values), metric
    return Row(run_fields.fields(run.config, converted) | versions, {run.path: run.state}, [results]), metrics
