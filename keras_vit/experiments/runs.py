"""Runs as their directories record them."""

import dataclasses
import glob
import os
from collections.abc import Sequence
from typing import Any

from absl import logging

from keras_vit.training import run_directory, run_fields

RUNS = "runs"  # the folder of a sweep's runs
_COUNTS = ("step", "examples")


@dataclasses.dataclass(frozen=True)
class Run:
    """A run, finished or not.

    Attributes:
        name: Path from the folder that all compared runs share.
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
        of_sweep = sorted(glob.glob(os.path.join(glob.escape(path), RUNS, "*", run_directory.CONFIG)))
        for run in map(os.path.normpath, map(os.path.dirname, of_sweep) if of_sweep else [path]):
            try:
                found[run] = found.get(run) or read_run(run)
            except (OSError, ValueError) as error:
                logging.warning("%s is skipped: %s", run, error)
                errors.append(error)
    if errors and not found:
        raise errors[0]
    parents = [os.path.dirname(os.path.abspath(path)) for path in found]
    common = os.path.commonpath(parents) if parents else ""
    return [dataclasses.replace(run, name=os.path.relpath(path, common)) for path, run in found.items()]


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
