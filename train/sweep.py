"""Train a recipe with all combinations of the values of some fields, and compare the results.

    keras-vit sweep --config=digits --grid=optim.learning_rate=1e-3,3e-4 --seeds=3 --workdir=runs/rates
    keras-vit sweep folder:images --grid=optim.learning_rate=1e-3,3e-4 --workdir=runs/mine
    keras-vit sweep --config=digits --grid=seed=0,1,2 --workdir=runs/seeds -- --distribute=mirrored

Each run is a process of `keras-vit train` in a directory of its own, DIR/runs/NAME. What follows `--` is passed to it.
The results are in DIR/table.md, written again after every run: mean and standard deviation over the seeds. Run the
same command again to resume. A larger grid adds runs. A run that fails does not stop the others; the exit code is then
1.
"""

import itertools
import sys
from collections.abc import Sequence

from absl import flags

from keras_vit import program
from keras_vit.program import common_flags

common_flags.define_recipe_flags()
flags.DEFINE_multi_string("grid", [], "FIELD=VALUE,VALUE... of the recipe. May be repeated: all combinations are run.")
flags.DEFINE_integer("seeds", None, "Number of seeds per combination: seed, seed + 1, and so on.", 1)
common_flags.define_written_flag("workdir", "Directory for all runs; finished runs there are not repeated.")
flags.DEFINE_string("metric", "eval_accuracy", "Metric that decides which setting is best; the lowest of a loss.")
flags.DEFINE_integer("parallel", 1, "Number of runs at a time.", 1)
flags.DEFINE_bool("list", False, "List the runs and their states, and run nothing.")

with program.imports(__name__):
    from keras_vit import experiments


def main(argv: Sequence[str]) -> int:
    options = flags.FLAGS
    if not options.workdir:
        raise ValueError("--workdir is missing: the directory for all runs.")
    data = list(itertools.takewhile(lambda argument: not argument.startswith("-"), argv[1:]))
    recipe = program.with_normalization(program.recipe_from_flags(data), options.workdir)
    grid = experiments.parse_grid(options.grid, recipe)
    if options.seeds:
        if "seed" in grid:
            raise ValueError("--seeds and --grid=seed=... exclude each other.")
        grid["seed"] = list(range(recipe.seed, recipe.seed + options.seeds))
    if not grid:
        raise ValueError("--grid is missing: the fields of the recipe to sweep over, such as --grid=seed=0,1,2")
    if options.list:
        states = experiments.pending(recipe, grid, options.workdir)
        sys.stdout.write("".join(f"{state:9} {name}\n" for name, state in states.items()))
        return 0

    further = argv[1 + len(data) :]
    table = experiments.sweep(
        recipe, grid, options.workdir, metric=options.metric, parallel=options.parallel, flags=further
    )
    sys.stdout.write(table.markdown())
    return 1 if table.failed or table.left else 0


if __name__ == "__main__":
    program.run(main)
