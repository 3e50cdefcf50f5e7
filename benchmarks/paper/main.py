"""Repeat the ViT paper's experiments in miniature, and report which of its claims reproduce.

    python -m benchmarks.paper.main --workdir=runs/paper --list  # panels, costs, remaining runs
    python -m benchmarks.paper.main --workdir=runs/paper         # everything; hours; resumes
    python -m benchmarks.paper.main --workdir=runs/paper --only=positions
    python -m benchmarks.paper.main --workdir=runs/digits --source=digits --only=pooling --seeds=2 --steps=200

Each panel is an experiment of "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929, with small models on
small images. As in `keras-vit sweep`, each run has a separate process and a separate directory, and finished runs are
not repeated. The document, paper.md, contains a section per panel with the claim, the recipe, a figure, a table, and a
conclusion that is computed from the numbers. It is written to --output after every panel and lists missing runs.

Install Fashion-MNIST with Debian's package dataset-fashion-mnist; the digits are part of this package.
"""

import sys
from collections.abc import Sequence

from absl import flags

from keras_vit import cli
from keras_vit.cli import common_flags

flags.DEFINE_string("workdir", "runs/paper", "Directory for all runs; finished runs in it are not repeated.")
flags.DEFINE_multi_string("only", [], "Run only this panel. Repeat the flag for several panels.")
flags.DEFINE_string("source", "fashion_mnist", "Data set: fashion_mnist or digits.")
flags.DEFINE_integer("seeds", 3, "Number of seeds per setting: 0, 1, and so on.", 1)
flags.DEFINE_integer("steps", None, "Number of steps of every run, for a trial.", 1)
flags.DEFINE_integer("parallel", 1, "Number of simultaneous runs.", 1)
flags.DEFINE_bool("list", False, "List the panels, their costs and the remaining runs, and exit.")
common_flags.define_output_flag("Directory for paper.md and its figures; --workdir by default.")

with cli.imports(__name__):
    from benchmarks import paper
    from keras_vit import data
    from keras_vit.inspection import plots
    from keras_vit.recipe import Recipe
    from keras_vit.util import checks


def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    checks.choice("--source", options.source, tuple(paper.DATA_SETS))
    for name in options.only:
        checks.choice("--only", name, tuple(paper.PANELS))
    study = paper.Study(options.workdir, options.source, options.seeds, options.steps)
    panels = {name: panel for name, panel in paper.PANELS.items() if name in (options.only or paper.PANELS)}
    if options.list:
        sys.stdout.write(overview(study, panels))
        return 0

    # Fail before the hours of training, not after them.
    plots.require_matplotlib()
    data.split_sizes(options.source)
    finished = True
    for panel in panels.values():
        finished &= paper.run(study, panel, options.parallel)
        path = paper.document.write(study, paper.PANELS, options.output or options.workdir)
    sys.stdout.write(f"{path}\n")
    return 0 if finished else 1


def overview(study: paper.Study, panels: dict[str, paper.Panel]) -> str:
    """Return a line per panel: finished runs, operations of all runs, and remaining hours of processor time."""
    lines = [f"{'panel':13}{'runs':>10}{'operations':>13}{'hours left':>12}  title\n"]
    together: dict[str, Recipe] = {}
    for name, panel in panels.items():
        runs = panel.runs(study)
        together |= runs
        done, total = paper.count(runs)
        cost = f"{paper.total_operations(runs):13.2g}{paper.hours_left(runs):12.1f}"
        lines.append(f"{name:13}{f'{done}/{total}':>10}{cost}  {panel.title}\n")
    done, total = paper.count(together)
    hours = f"{paper.hours_left(together):.1f} hours of processor time"
    return "".join(lines) + f"\n{done} of {total} runs are finished. About {hours} are left.\n"


if __name__ == "__main__":
    cli.run(main)
