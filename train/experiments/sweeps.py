"""Sweeps: one run per setting of recipe fields, each in its own process. An Optuna study records them.

DIR/study.journal   the study: one trial per start of a run, with its setting, validations and outcome
DIR/table.md        the results, rewritten after every run
DIR/runs/NAME/      a run directory, with the recipe of the run in `recipe.py` and its output in `output.txt`

Several sweeps can share DIR and divide the runs: a sweep locks DIR/locks/NAME while it trains a run. When a sweep is
killed, its locks are released, and another sweep can continue its runs.
"""

import contextlib
import dataclasses
import os
import pprint
import sys
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import Any

import filelock
from absl import logging

from keras_vit import recipe as recipes
from keras_vit.runs import run_directory, run_fields
from keras_vit.runs.errors import Diverged, Interrupted
from keras_vit.util import extras, file_io, locks
from keras_vit.util.metrics import Metric
from keras_vit.util.progress import track
from keras_vit.util.signals import StopRequest

from . import processes
from .runs import RUNS, final_metrics, metric_of
from .search import Grid, Settings, expand
from .table import Row, Table

STUDY, TABLE, LOCKS, RECIPE, OUTPUT = "study.journal", "table.md", "locks", "recipe.py", "output.txt"
TRAIN = (sys.executable, "-m", "keras_vit", "train")


def sweep(
    recipe: recipes.Recipe,
    space: Mapping[str, Any] | Sequence[Grid],
    workdir: str,
    *,
    trials: int = 0,
    metric: str = "",
    prune: bool = True,
    parallel: int = 1,
    command: Sequence[str] = TRAIN,
) -> Table:
    """Train a recipe with several settings of its fields, and return the table of results with the best setting first.

    If the directory already contains the sweep, finished runs are kept, stopped runs are resumed, failed runs are
    repeated, and new runs are added.

    Args:
        recipe: Recipe with the values of all other fields.
        space: Values by dotted field, or several such grids. With `trials`, a tuple is a range (low, high), and a field
            may have an Optuna distribution instead of values.
        workdir: Directory of the sweep. Several processes and machines may share it.
        trials: Number of settings that Optuna's sampler chooses; 0 trains all combinations of the values.
        metric: Metric of `metrics.jsonl` that ranks the settings, by its value for the chosen weights of each run. By
            default, the metric of the recipe's task on the images that choose.
        prune: Whether to stop a run whose best validation so far is in the worst quarter of all runs at that step.
        parallel: Number of runs at a time.
        command: Program that trains. It receives `--config` and `--workdir`.

    Raises:
        ImportError: If Optuna is not installed.
        ValueError: If the space is not valid, or the directory contains a sweep of another recipe or metric. The
            message names the fields.
        Interrupted: If SIGTERM or Ctrl-C was received, after all runs have saved their state.

    Example:
    >>> sweep(recipe, {"optim.learning_rate": [1e-3, 3e-4], "seed": range(3)}, "runs/rates")  # doctest: +SKIP
    """
    chosen, runs = dict[str, Any](), dict[str, Settings]()
    if not trials:
        runs = expand(recipe, space)
    elif isinstance(space, Mapping):
        chosen = {field: _distribution(choices) for field, choices in space.items()}
        recipes.replace(recipe, {field: recipes.get(recipe, field) for field in chosen})  # fails for unknown fields
        runs = {f"{number:03}": {} for number in range(trials)}
    else:
        raise ValueError("With trials, space must be a single mapping. Received: several grids.")
    decides = metric_of(recipe.task.metrics, recipe.evaluators, metric)
    swept = set.intersection(*({*chosen, *settings} for settings in runs.values()))
    study = _open_study(workdir, recipe, swept, decides, prune)
    with StopRequest() as stop, futures.ThreadPoolExecutor(parallel) as pool:
        stop.defer()
        state = _Sweep(workdir, recipe, decides, chosen, command, study, len(study.get_trials(deepcopy=False)), stop)
        results = track(pool.map(state.train, runs, runs.values()), "Runs", len(runs), "runs")
        for number, _ in enumerate(results, 1):
            file_io.write_text(os.path.join(workdir, TABLE), state.table().markdown())
            logging.info("%d of %d runs", number, len(runs))
        if stop:
            raise Interrupted(f"Stopped by {stop.signal}. Start the same command again to resume.")
    return state.table()


@dataclasses.dataclass
class _Sweep:
    """The runs of a call of `sweep`. Trials of the study have the attributes "run", "settings" and later "outcome"."""

    directory: str
    recipe: recipes.Recipe
    metric: Metric
    chosen: dict[str, Any]  # distributions of the fields that Optuna chooses
    command: Sequence[str]
    study: Any
    earlier: int  # number of trials of earlier calls
    stop: StopRequest

    def train(self, name: str, settings: Settings) -> None:
        """Train a run, unless it is finished or another process trains it."""
        path = os.path.join(self.directory, RUNS, name)
        with contextlib.ExitStack() as claim:
            try:
                claim.enter_context(locks.locked(os.path.join(self.directory, LOCKS, name)))
                with locks.locked(path):  # raises an error if a training process has outlived its sweep
                    last: Any = _last_trials(self.study).get(name)
            except ValueError as error:
                logging.info("%s is skipped: %s", name, error)
                return
            outcome = last.user_attrs.get("outcome", "") if last else ""
            again = outcome.startswith("failed") and last.number < self.earlier  # the run failed in an earlier call
            if self.stop or (outcome and not again):
                return
            trial = self._ask(last)
            settings = run_directory.as_json(settings | trial.params)
            file_io.write_text(os.path.join(path, RECIPE), recipe_file(recipes.replace(self.recipe, settings)))
            trial.set_user_attr("settings", settings)
            trial.set_user_attr("run", name)
            outcome = self._train(trial, path)
            logging.info("%s: %s", name, outcome or "stopped")
            trial.set_user_attr("outcome", outcome)
            if outcome == "finished":
                self.study.tell(trial, final_metrics(path)[self.metric.name])
            else:  # the sampler learns from pruned trials, but not from failed trials
                state = "PRUNED" if outcome.startswith(("pruned", "diverged")) else "FAIL"
                self.study.tell(trial, state=_optuna().trial.TrialState[state])

    def _ask(self, last: Any) -> Any:
        """Return a new trial, with the parameters of the run's last trial if there was one."""
        with filelock.FileLock(os.path.join(self.directory, f"{STUDY}.asking")):
            if last:
                self.study.tell(last.number, state=_optuna().trial.TrialState.FAIL, skip_if_finished=True)
                self.study.enqueue_trial(last.params)
            return self.study.ask(self.chosen)

    def _train(self, trial: Any, path: str) -> str:
        """Run the training program, report its validations, and return the outcome; empty if the run was stopped."""
        name, output, reported, pruned = self.metric.name, os.path.join(path, OUTPUT), set[int](), False

        def should_stop() -> bool:
            nonlocal pruned
            for line in run_directory.read_metrics(path):
                if name in line and line["step"] not in reported:
                    reported.add(line["step"])
                    trial.report(line[name], line["step"])
            pruned = trial.should_prune()
            return pruned or bool(self.stop)

        command = [*self.command, f"--config={os.path.join(path, RECIPE)}", f"--workdir={path}"]
        code = 0 if run_directory.is_finished(path) else processes.run(command, output, should_stop)
        if run_directory.is_finished(path):
            should_stop()  # reports the last validations
            final = final_metrics(path)
            return "finished" if name in final else f"failed: it has no {name}, but {', '.join(final)}"
        if code == Interrupted.exit_code:
            return "pruned" if pruned else ""
        reason = f"exit code {code}, {processes.last_line(output)} ({output})"
        return f"{'diverged' if code == Diverged.exit_code else 'failed'}: {reason}"

    def table(self) -> Table:
        """Return the results of all calls, the best setting first."""
        runs = {name: trial.user_attrs for name, trial in _last_trials(self.study).items()}
        fields = dict.fromkeys(field for run in runs.values() for field in run["settings"] if field != "seed")
        rows, metrics = dict[str, Row](), {self.metric.name: self.metric}
        for name, run in runs.items():
            settings = {field: run["settings"].get(field, recipes.get(self.recipe, field)) for field in fields}
            row = rows.setdefault(str(settings), Row(settings))
            row.runs[name] = run.get("outcome") or "not finished"
            if row.runs[name] == "finished":
                row.results.append(final_metrics(os.path.join(self.directory, RUNS, name)))
                known = self.recipe.task.metrics, self.recipe.evaluators
                metrics |= {key: metric_of(*known, key) for key in row.results[-1]}
        best_first = sorted(rows.values(), key=lambda row: row.goodness(self.metric), reverse=True)
        for row in best_first[1:]:  # test images must not choose a setting
            row.results = [{key: one[key] for key in one if not key.startswith("test_")} for one in row.results]
        return Table(best_first, list(metrics.values()))


def recipe_file(recipe: recipes.Recipe) -> str:
    """Return a recipe as a file for `--config`."""
    text = pprint.pformat(recipe, width=110, sort_dicts=False).replace("\n", "\n    ")
    start = '"""A run of a sweep."""\n\nfrom keras_vit.recipe import *  # noqa: F403'
    return f'{start}\n\n\ndef get_config() -> Recipe:\n    """Return the recipe."""\n    return {text}\n'


def _optuna() -> Any:
    with extras.needed("sweep", "A sweep needs Optuna"):
        import optuna
    return optuna


def _distribution(choices: Any) -> Any:
    """Return a distribution over values, or over a range: logarithmic if its ends differ by a factor of at least 10."""
    known = _optuna().distributions
    if isinstance(choices, known.BaseDistribution):
        return choices
    if not isinstance(choices, tuple):
        return known.CategoricalDistribution(list(choices))
    if len(choices) != 2:
        raise ValueError(f"A range must be two numbers, LOW,HIGH. Received: {choices}")
    low, high = choices
    kind = known.IntDistribution if isinstance(low, int) and isinstance(high, int) else known.FloatDistribution
    return kind(low, high, log=0 < 10 * low <= high)


def _last_trials(study: Any) -> dict[str, Any]:
    """Return the last trial of each run."""
    return {trial.user_attrs["run"]: trial for trial in study.get_trials(deepcopy=False) if "run" in trial.user_attrs}


def _open_study(directory: str, recipe: recipes.Recipe, swept: set[str], metric: Metric, prune: bool) -> Any:
    """Open or create the study of a directory.

    Raises:
        ValueError: If the study ranks by another metric, or its recipe has a different value for a field outside
            `swept`.
    """
    optuna, path = _optuna(), os.path.abspath(os.path.join(directory, STUDY))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruners, journal, later = optuna.pruners, optuna.storages.journal, recipe.total_steps // 2
    file_io.make_directory(directory)
    study = optuna.create_study(
        storage=journal.JournalStorage(journal.JournalFileBackend(path, journal.JournalFileOpenLock(path))),
        study_name="sweep",
        load_if_exists=True,
        direction="maximize" if metric.larger_is_better else "minimize",
        pruner=pruners.PercentilePruner(75.0, 4, later, n_min_trials=4) if prune else pruners.NopPruner(),
    )
    swept = swept.intersection(*(trial.user_attrs["settings"] for trial in _last_trials(study).values()))
    base = study.user_attrs.get("base") or [run_directory.as_json(recipes.to_dict(recipe)), metric.name]
    found = run_fields.differences({"recipe": base[0], "data": {}}, recipe, {})
    if base[1] != metric.name:
        found["--metric"] = base[1], metric.name
    other = {field: values for field, values in found.items() if field not in {*swept, *run_fields.HARMLESS}}
    if other:
        listed = "; ".join(f"{field}: {old!r} -> {new!r}" for field, (old, new) in other.items())
        raise ValueError(f"{directory} contains another sweep. Before -> now: {listed}. Pass another --workdir.")
    study.set_user_attr("base", base)
    return study
