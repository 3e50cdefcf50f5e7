"""Sweeps: a run per combination of recipe fields, each in a process and a directory of its own.

DIR/sweep.json         the recipe, and all runs with their settings, commands, exit codes and seconds
DIR/table.md, .json    the results, written again after every run
DIR/runs/NAME/         a run directory, with `recipe.py`, the recipe of the run, and `output.txt`, what it printed
"""

import dataclasses
import os
import pprint
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from absl import logging

from keras_vit import _io
from keras_vit import recipe as recipes
from keras_vit._progress import duration
from keras_vit.experiments.processes import Job, last_line, run_all
from keras_vit.experiments.runs import RUNS, SWEEP, final_metrics
from keras_vit.experiments.search import Grid, Point, expand
from keras_vit.experiments.table import SEED, Row, Table
from keras_vit.training import lock, run_directory, run_fields
from keras_vit.training.errors import Interrupted

TABLE = "table"
RECIPE, OUTPUT = "recipe.py", "output.txt"
TRAIN = (sys.executable, "-m", "keras_vit", "train")


def sweep(
    recipe: recipes.Recipe,
    grid: Grid | Sequence[Grid],
    workdir: str,
    *,
    metric: str = "eval_accuracy",
    lowest: bool | None = None,
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
        lowest: Whether the lowest value of the metric is the best; None for metrics whose name ends with "loss".
        parallel: Number of runs at a time.
        flags: Further flags of `keras-vit train`, such as `--distribute=mirrored`.
        command: Command that trains instead of `keras-vit train`. It receives `--config` and `--workdir`.

    Returns:
        The table of all runs in the directory, which is also written there as `table.md` and `table.json`.

    Raises:
        ValueError: If the grid is wrong, or the directory holds a sweep of another recipe. Names the fields.
        Interrupted: After all runs have saved, if SIGTERM or Ctrl-C came.

    Example:
    >>> sweep(recipe, {"optim.learning_rate": [1e-3, 3e-4], "seed": range(3)}, "runs/rates")  # doctest: +SKIP
    """
    points = expand(recipe, grid)
    with lock.locked(workdir):
        state = _Sweep.open(workdir, recipe, points, [*(command or TRAIN), *flags])
        state.metric, state.parallel = metric, parallel
        state.lowest = metric.endswith("loss") if lowest is None else lowest
        state.write()
        state.report()
        run_all(state.jobs(), parallel, state.started, state.ended)
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
    lowest: bool = False
    parallel: int = 1

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
            known = state.runs.get(name, {"status": "waiting", "exit_code": None, "seconds": 0.0})
            state.runs[name] = {"settings": point.settings, **known, "command": shlex.join(full)}
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
        status = self.runs[name]["status"]
        return "waiting" if status == "finished" else status

    def write(self) -> None:
        _io.write_json(os.path.join(self.directory, SWEEP), {"recipe": self.recipe, "runs": self.runs})

    def table(self) -> Table:
        """Return the table of the runs of all calls, and write it."""
        fields = list(dict.fromkeys(field for run in self.runs.values() for field in run["settings"] if field != SEED))
        base = recipes.from_dict(self.recipe)
        groups: dict[str, list[tuple[dict, str]]] = {}
        for name, run in self.runs.items():
            settings = {field: run["settings"].get(field, recipes.get(base, field)) for field in fields}
            groups.setdefault(_io.one_line(settings), []).append((settings, name))
        states = {name: self.status(name) for name in self.runs}
        failed = {name: self._reason(name) for name, state in states.items() if state == "failed"}
        rows = []
        for group in groups.values():
            metrics: dict[str, list[float]] = {}
            for name in (name for _, name in group if states[name] == "finished"):
                for key, value in final_metrics(run_directory.read_metrics(self.path(name))).items():
                    metrics.setdefault(key, []).append(value)
            rows.append(Row(group[0][0], len(group), sum(name in failed for _, name in group), metrics))
        left = sum(state not in ("finished", "failed") for state in states.values())
        table = Table(rows, self.metric, self.lowest, failed, left)
        _io.write_json(os.path.join(self.directory, f"{TABLE}.json"), table.to_dict())
        _io.write_text(os.path.join(self.directory, f"{TABLE}.md"), table.markdown())
        return table

    def _reason(self, name: str) -> str:
        path = os.path.join(self.path(name), OUTPUT)
        return f"exit code {self.runs[name]['exit_code']}, {last_line(path) or 'no output'} ({path})"

    def left(self) -> list[str]:
        """Return the names of the runs of this call that are not finished."""
        return [name for name in self.points if self.status(name) != "finished"]

    def jobs(self) -> list[Job]:
        """Return the processes to run. The recipe of each is written."""
        jobs = []
        for name in self.left():
            place = self.path(name)
            _io.write_text(os.path.join(place, RECIPE), recipe_file(self.points[name].recipe))
            command = shlex.split(self.runs[name]["command"])
            jobs.append(Job(name, command, os.path.join(place, OUTPUT), _environment()))
        return jobs

    def report(self) -> None:
        """Log how many runs are left and how long they take, and write the table."""
        self.table()
        left, total = self.left(), len(self.points)
        known = [seconds for name in self.points if name not in left and (seconds := self.runs[name]["seconds"])]
        rest = sum(known) / len(known) * -(-len(left) // self.parallel) if known else None
        time = "" if rest is None else f", about {duration(rest)}"
        logging.info("%d of %d runs finished%s", total - len(left), total, f"; {len(left)} left{time}" if left else "")

    def started(self, job: Job) -> None:
        self.runs[job.name].update(status="started")
        self.write()

    def ended(self, job: Job, exit_code: int, seconds: float) -> None:
        run = self.runs[job.name]
        status = {0: "finished", Interrupted.exit_code: "started"}.get(exit_code, "failed")
        run.update(status=status, exit_code=exit_code, seconds=round(run["seconds"] + seconds, 1))
        self.write()
        if status == "failed":
            logging.error("%s failed: %s", job.name, self._reason(job.name))
        self.report()


def recipe_file(recipe: recipes.Recipe) -> str:
    """Return a recipe as a file for `--config`."""
    text = pprint.pformat(recipe, width=110, sort_dicts=False).replace("\n", "\n    ")
    return (
        '"""A run of a sweep."""\n\n'
        "from keras_vit.recipe import MAE, Classification, Data, Distillation, MaskedPatch, Model, Optim, Recipe, "
        "Schedule\n\n\n"
        f'def get_config() -> Recipe:\n    """Return the recipe."""\n    return {text}\n'
    )


def _environment() -> dict[str, str]:
    """Return the variables that let a process find this package where it is not installed."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))}
