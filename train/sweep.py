"""Train a recipe with many settings of some fields, and compare the results.

    keras-vit sweep --config=digits --grid=optim.learning_rate=1e-3,3e-4 --seeds=3 --workdir=runs/rates
    keras-vit sweep folder:images --range=optim.learning_rate=1e-5,1e-2 --trials=20 --workdir=runs/mine
    keras-vit sweep --config=digits --grid=seed=0,1,2 --workdir=runs/seeds -- --distribute=mirrored

Each run is a process of `keras-vit train` with its own run directory, DIR/runs/NAME. Arguments after `--` are passed to
this program.
The results are in DIR/table.md, which is updated after every run. Run the same command again to resume, or on several
machines that share DIR to divide the work. A larger grid or more trials add runs. A run with clearly worse validations
than other runs is stopped. A failed run does not stop the other runs, but changes the exit code to 1.
"""

import itertools
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags, logging

from keras_vit import cli
from keras_vit.cli import common_flags

common_flags.define_recipe_flags()
flags.DEFINE_multi_string("grid", [], "FIELD=VALUE,VALUE... of the recipe. May be repeated: all combinations are run.")
flags.DEFINE_multi_string("range", [], "FIELD=LOW,HIGH of the recipe, for --trials.")
flags.DEFINE_integer("trials", 0, "Number of settings that Optuna chooses from --grid and --range.", 0)
flags.DEFINE_integer("seeds", None, "Number of seeds per combination: seed, seed + 1, and so on.", 1)
common_flags.define_written_flag("workdir", "Directory for all runs; finished runs in it are not repeated.", schemes=())
flags.DEFINE_string("metric", "", "Metric that determines the best setting, such as eval_loss.")
flags.DEFINE_bool("prune", True, "Stop runs that are among the worst quarter.")
flags.DEFINE_integer("parallel", 1, "Number of simultaneous runs.", 1)
flags.DEFINE_bool("list", False, "List the runs of --grid and exit.")

with cli.imports(__name__):
    from . import experiments
    from .experiments import search
    from .experiments.sweeps import RECIPE, RUNS, TRAIN


def main(argv: Sequence[str]) -> int:
    options = flags.FLAGS
    if not options.workdir:
        raise ValueError("--workdir is missing: the directory for all runs.")
    data = list(itertools.takewhile(lambda argument: not argument.startswith("-"), argv[1:]))
    recipe = cli.recipe_from_flags(data, options.workdir)
    space: dict[str, Any] = {**search.parse_grid(options.grid, recipe)}
    space |= {field: tuple(ends) for field, ends in search.parse_grid(options.range, recipe).items()}
    if options.seeds:
        if "seed" in space or options.trials:
            raise ValueError("--seeds excludes --grid=seed=... and --trials.")
        space["seed"] = list(range(recipe.seed, recipe.seed + options.seeds))
    if options.epochs and "data.batch_size" in space:
        raise ValueError("--epochs sets one number of steps, which fits one batch size. Pass --steps instead.")
    if not space:
        raise ValueError("--grid is missing: the fields of the recipe to sweep over, such as --grid=seed=0,1,2")
    if options.range and not options.trials:
        raise ValueError("--trials is missing: how many settings to choose from --range.")
    if recipe.data.eval_split == recipe.data.test_split:
        train, test = recipe.data.train_split, recipe.data.test_split
        logging.warning(
            "The test images rank the settings, so the result of the best setting is optimistic. Training images rank "
            "them with --config.data.train_split='fit(%s)' --config.data.eval_split='validation(%s)' "
            "--config.data.test_split=%s",
            *(train, train, test),
        )
    if options.list:
        sys.stdout.write("".join(f"{name}\n" for name in search.expand(recipe, space)))
        return 0

    table = experiments.sweep(
        recipe,
        space,
        options.workdir,
        trials=options.trials,
        metric=options.metric,
        prune=options.prune,
        parallel=options.parallel,
        command=[*TRAIN, *argv[1 + len(data) :]],
    )
    sys.stdout.write(table.markdown())
    if table.rows and table.rows[0].results:
        best = os.path.join(options.workdir, RUNS, next(iter(table.rows[0].runs)), RECIPE)
        sys.stdout.write(f"\nThe first row is the best: keras-vit train --config={shlex.quote(best)} --workdir=...\n")
    return 1 if any(state.startswith("failed") for row in table.rows for state in row.runs.values()) else 0


if __name__ == "__main__":
    cli.run(main)
