"""Runs as their directories record them."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

from absl import logging

from keras_vit import _io
from keras_vit.training import run_directory, run_fields

SWEEP, RUNS = "sweep.json", "runs"  # a sweep's record and the folder of its runs
_COUNTS = ("step", "examples")


@dataclasses.dataclass(frozen=True)
class Run:
    """A run, finished or not.

    Attributes:
        name: Short name, which tells it apart from the other runs.
        path: The run directory.
        fields: The recipe and the data, as one dictionary with dotted names.
        versions: Versions of Python and of packages, by name.
        lines: Lines of `metrics.jsonl`.
    """

    name: str
    path: str
    fields: dict[str, Any]
    versions: dict[str, str]
    lines: list[dict[str, Any]]

    @property
    def step(self) -> int:
        """The last step that was logged or evaluated."""
        return max((line["step"] for line in self.lines), default=0)

    @property
    def finished(self) -> bool:
        """Whether the run has written its model."""
        return os.path.exists(os.path.join(self.path, run_directory.MODEL))

    def final(self) -> dict[str, float]:
        """Return the last value of every metric of the evaluations."""
        return final_metrics(self.lines)

    def curve(self, quantity: str) -> dict[int, float]:
        """Return the values of a quantity by step."""
        values = {line["step"]: line.get(quantity) for line in self.lines if quantity in line}
        return {step: float(value) for step, value in values.items() if isinstance(value, (int, float))}


def read_runs(paths: Sequence[str]) -> list[Run]:
    """Read runs, and of sweeps all runs that have begun; skip other paths and damaged runs with a warning."""
    found, errors = dict[str, Run](), list[Exception]()
    for path in paths:
        runs: list[str] = []
        with _skipping(path, errors):
            runs = _runs_of(path)
        for run in map(os.path.normpath, runs):
            with _skipping(run, errors):
                found[run] = found.get(run) or read_run(run)
    if errors and not found:
        raise errors[0]
    return [
        dataclasses.replace(run, name=name) for run, name in zip(found.values(), _short_names(list(found)), strict=True)
    ]


@contextlib.contextmanager
def _skipping(path: str, errors: list[Exception]) -> Iterator[None]:
    """Log the error of a path that cannot be read, and keep it."""
    try:
        yield
    except (OSError, ValueError) as error:
        logging.warning("%s is skipped: %s", path, error)
        errors.append(error)


def read_run(path: str) -> Run:
    """Read a run directory; see `read_runs`."""
    config = run_directory.read_config(path)
    versions, lines = config.get("versions", {}), run_directory.read_metrics(path)
    return Run(os.path.basename(path), path, run_fields.fields(config), versions, lines)


def final_metrics(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the last value of every metric of the evaluations in lines of `metrics.jsonl`."""
    found: dict[str, float] = {}
    for line in lines:
        if "loss" not in line:  # a line of training
            numbers = {name: value for name, value in line.items() if isinstance(value, (int, float))}
            found |= {name: value for name, value in numbers.items() if name not in _COUNTS}
    return found


def _runs_of(path: str) -> list[str]:
    """Return the run directories that a path stands for."""
    sweep = os.path.join(path, SWEEP)
    if not os.path.exists(sweep):
        return [path]
    names = _io.read_json(sweep).get("runs")
    if not isinstance(names, dict):
        raise ValueError(f"{sweep} must hold 'runs'. It was not written by a sweep.")
    runs = [os.path.join(path, RUNS, name) for name in names]
    begun = [run for run in runs if os.path.exists(os.path.join(run, run_directory.CONFIG))]
    if len(begun) < len(runs):
        logging.warning("%d of %d runs of %s have not begun.", len(runs) - len(begun), len(runs), path)
    return begun


def _short_names(paths: Sequence[str]) -> list[str]:
    """Return the shortest ends of paths that differ from each other."""
    parts = [os.path.abspath(path).strip(os.sep).split(os.sep) for path in paths]
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return list(paths)
