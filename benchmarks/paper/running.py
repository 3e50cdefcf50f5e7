"""Run the panels of a study, and estimate the cost."""

from collections.abc import Mapping, Sequence

from absl import logging

from benchmarks.paper.panel import Panel
from benchmarks.paper.study import Study, is_finished, operations
from keras_vit.recipe import Recipe
from train.experiments.sweeps import TRAIN, sweep

# Speed of one core of an AMD EPYC: training steps of 128 images reach 1.6e10 (a ViT of width 32) to 5.7e10 (BiT)
# operations per second. The seconds are the time of a run in addition to its steps.
OPERATIONS_PER_SECOND = 3e10
SECONDS_PER_RUN = 25


def count(runs: Mapping[str, Recipe]) -> tuple[int, int]:
    """Return the number of finished runs and the number of all runs. `runs` maps run directories to recipes."""
    return sum(map(is_finished, runs)), len(runs)


def total_operations(runs: Mapping[str, Recipe]) -> int:
    """Return the floating-point operations of all runs according to the planner."""
    return sum(map(operations, runs.values()))


def hours_left(runs: Mapping[str, Recipe]) -> float:
    """Return the expected processor time of the unfinished runs in hours."""
    left = {path: recipe for path, recipe in runs.items() if not is_finished(path)}
    return (total_operations(left) / OPERATIONS_PER_SECOND + len(left) * SECONDS_PER_RUN) / 3600


def run(study: Study, panel: Panel, parallel: int = 1, command: Sequence[str] = TRAIN) -> bool:
    """Run the remaining runs of a panel.

    Args:
        study: The study.
        panel: The panel.
        parallel: Number of runs at a time.
        command: Training command that takes `--config` and `--workdir`.

    Returns:
        Whether all runs are finished. If some runs failed, the stages that depend on them are not started.

    Raises:
        Interrupted: After SIGTERM or Ctrl-C, when all runs have saved.
    """
    runs = panel.runs(study)
    logging.info(
        "%s: %d of %d runs finished; %.2g operations in all, about %.1f hours of processor time left",
        *(panel.name, *count(runs), total_operations(runs), hours_left(runs)),
    )
    if panel.prepare and hours_left(runs):
        panel.prepare(study)
    for make in panel.stages:
        stage = make(study)
        if all(map(is_finished, study.runs(stage))):
            continue
        directory = study.directory(stage)
        sweep(stage.recipe, stage.grid, directory, prune=False, parallel=parallel, command=command)
        done, total = count(study.runs(stage))
        if done < total:
            logging.error("%s: %d of %d runs failed", stage.name, total - done, total)
            return False
    return True
