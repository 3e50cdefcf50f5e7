"""Sweeps: a run per combination of recipe fields, each in a process and a directory of its own.

DIR/sweep.json    the recipe, and all runs with their settings, commands and exit codes
DIR/table.md      the results, written again after every run
DIR/runs/NAME/    a run directory, with `recipe.py`, the recipe of the run, and `output.txt`, what it printed
"""

import dataclasses
import os
import pprint
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from absl import logging

from keras_vit import _io, _lock
from keras_vit import recipe as recipes
from keras_vit.experiments.processes import Job, last_line, run_all
from keras_vit.experiments.runs import RUNS, final_metrics
from keras_vit.experiments.search import Grid, Point, expand
from keras_vit.experiments.table import SEED, Row, Table
from keras_vit.training import run_directory, run_fields
from keras_vit.training.errors import Interrupted

SWEEP, TABLE = "sweep.json", "table.md"
RECIPE, OUTPUT = "recipe.py", "output.txt"
TRAIN = (sys.executable, "-m", "keras_vit", "train")


def sweep(
    recipe: recipes.Recipe,
    grid: Grid | Sequence[Grid],
    workdir: str,
    *,
    metric: str = "eval_accuracy",
    parallel: int = 1,
    flags: Sequence[str] = (),
    command: Sequence[str] = (),
) -> Table:
    """Train a recipe with all combinations of the values of some fields.

    Each run is a process of `keras-vit train`. Called again, finished runs are kept, a stopped one resumes and a failed
    one is tried again. Another grid adds its runs. A run that fails does not end the sweep.

    Args:
        recipe: Recipe for all other fields.
        grid: Values by dotted field, or several such grids, whose points are joined.
        workdir: Directory of the sweep.
        metric: Metric of `metrics.jsonl` that decides which setting is best. The last value of each run counts.
        parallel: Number of runs at a time.
        flags: Further flags of `keras-vit train`, such as `--distribute=mirrored`.
        command: Command that trains instead of `keras-vit train`. It receives `--config` and `--workdir`.

    Returns:
        The table of all runs in the directory, which is also written there as `table.md`.

    Raises:
        ValueError: If the grid is wrong, or the directory holds a sweep of another recipe. Names the fields.
        Interrupted: After all runs have saved, if SIGTERM or Ctrl-C came.

    Example:
    >>> sweep(recipe, {"optim.learning_rate": [1e-3, 3e-4], "seed": range(3)}, "runs/rates")  # doctest: +SKIP
    """
    points = expand(recipe, grid)
    with _lock.locked(workdir):
        state = _Sweep.open(workdir, recipe, points, [*(command or TRAIN), *flags])
        state.metric = metric
        state.report()
        for job, exit_code in run_all(state.jobs(), parallel):
            state.runs[job.name]["exit_code"] = exit_code
            if state.status(job.name) == "failed":
                logging.error("%s failed: %s", job.name, state.reason(job.name))
            state.report()
        return state.table()


def pending(recipe: recipes.Recipe, grid: Grid | Sequence[Grid], workdir: str) -> dict[str, str]:
    """Return the runs of a sweep and their states (`"finished"`, `"failed"`, `"started"`, `"waiting"`); run nothing."""
    state = _Sweep.open(workdir, recipe, expand(recipe, grid), TRAIN)
    return {name: state.status(name) for name in state.points}


@dataclasses.dataclass
class _Sweep:
    """The content of `sweep.json`, and the runs of one call."""

    directory: str
    recipe: dict[str, Any]
    runs: dict[str, dict[str, Any]]  # of this and earlier calls, by name
    points: dict[str, Point]  # of this call, by name
    metric: str = "eval_accuracy"

    @classmethod
    def open(cls, directory: str, recipe: recipes.Recipe, points: Sequence[Point], command: Sequence[str]) -> "_Sweep":
        """Return the sweep of a directory with the runs of a call added."""
        path = os.path.join(directory, SWEEP)
        before = _io.read_json(path) if os.path.exists(path) else {"recipe": recipes.to_dict(recipe), "runs": {}}
        state = cls(directory, recipes.to_dict(recipe), dict(before["runs"]), {point.name: point for point in points})
        state._check_recipe(before["recipe"], recipe)
        for name, point in state.points.items():
            place = state.path(name)
            full = [*command, f"--config={os.path.join(place, RECIPE)}", f"--workdir={place}"]
            exit_code = state.runs.get(name, {}).get("exit_code")
            state.runs[name] = {"settings": point.settings, "exit_code": exit_code, "command": shlex.join(full)}
        return state

    def _check_recipe(self, before: dict[str, Any], recipe: recipes.Recipe) -> None:
        """Refuse a recipe that gives other results in the fields that are not swept."""
        settings = [run["settings"] for run in self.runs.values()] + [point.settings for point in self.points.values()]
        swept = set.intersection(*(set(fields) for fields in settings))
        found = run_fields.differences({"recipe": before, "data": {}}, recipe, {})
        other = {field: values for field, values in found.items() if field not in swept | set(run_fields.HARMLESS)}
        if other and self.runs:
            listed = "; ".join(f"{field}: {old!r} -> {new!r}" for field, (old, new) in other.items())
            raise ValueError(
                f"{self.directory} holds a sweep of another recipe. There -> here: {listed}. Give another --workdir, "
                "or sweep over these fields."
            )

    def path(self, name: str) -> str:
        return os.path.join(self.directory, RUNS, name)

    def status(self, name: str) -> str:
        """Return the state of a run. A run with a model is finished, whoever trained it."""
        if os.path.exists(os.path.join(self.path(name), run_directory.MODEL)):
            return "finished"
        if self.runs[name]["exit_code"] not in (None, 0, Interrupted.exit_code):
            return "failed"
        return "started" if os.path.exists(os.path.join(self.path(name), OUTPUT)) else "waiting"

    def table(self) -> Table:
        """Return the table of the runs of all calls."""
        fields = list(dict.fromkeys(field for run in self.runs.values() for field in run["settings"] if field != SEED))
        base = recipes.from_dict(self.recipe)
        groups: dict[str, Row] = {}
        failed, left = {}, 0
        for name, run in self.runs.items():
            settings = {field: run["settings"].get(field, recipes.get(base, field)) for field in fields}
            row = groups.setdefault(_io.one_line(settings), Row(settings))
            row.runs += 1
            status = self.status(name)
            left += status in ("started", "waiting")
            if status == "failed":
                failed[name] = self.reason(name)
            if status == "finished":
                for key, value in final_metrics(run_directory.read_metrics(self.path(name))).items():
                    row.metrics.setdefault(key, []).append(value)
        return Table(list(groups.values()), self.metric, failed, left)

    def reason(self, name: str) -> str:
        """Return why a run failed: its exit code, and the last line that it printed."""
        path = os.path.join(self.path(name), OUTPUT)
        return f"exit code {self.runs[name]['exit_code']}, {last_line(path) or 'no output'} ({path})"

    def jobs(self) -> list[Job]:
        """Return the processes to run, of the runs that are not finished. The recipe of each is written."""
        jobs = []
        for name, point in self.points.items():
            if self.status(name) != "finished":
                place = self.path(name)
                _io.write_text(os.path.join(place, RECIPE), recipe_file(point.recipe))
                jobs.append(Job(name, shlex.split(self.runs[name]["command"]), os.path.join(place, OUTPUT)))
        return jobs

    def report(self) -> None:
        """Write the record and the table, and log how many runs are finished."""
        _io.write_json(os.path.join(self.directory, SWEEP), {"recipe": self.recipe, "runs": self.runs})
        _io.write_text(os.path.join(self.directory, TABLE), self.table().markdown())
        finished = sum(self.status(name) == "finished" for name in self.points)
        logging.info("%d of %d runs finished", finished, len(self.points))


def recipe_file(recipe: recipes.Recipe) -> str:
    """Return a recipe as a file for `--config`."""
    text = pprint.pformat(recipe, width=110, sort_dicts=False).replace("\n", "\n    ")
    return (
        '"""A run of a sweep."""\n\n'
        "from keras_vit.recipe import MAE, Classification, Data, Distillation, MaskedPatch, Model, Optim, Recipe, "
        "Schedule\n\n\n"
        f'def get_config() -> Recipe:\n    """Return the recipe."""\n    return {text}\n'
    )
