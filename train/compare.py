"""Compare runs: their recipes and results.

    keras-vit compare runs/adamw runs/sgd
    keras-vit compare runs/adamw runs/sweep --json

Each argument is the directory of a run, finished or not, or of a sweep, which stands for all of its runs. Other paths
and damaged runs are skipped, so that you can pass runs/*. The program prints a table in Markdown. Use TensorBoard to
see learning curves.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence

from absl import flags

from keras_vit import cli
from keras_vit.cli import common_flags

common_flags.define_json_flag("table")

with cli.imports(__name__):
    from . import experiments

LONGEST_TABLE = 6  # maximum number of runs in columns; with more runs, each run is a row


def main(argv: Sequence[str]) -> int:
    table = experiments.compare(argv[1:])
    if flags.FLAGS.json:
        sys.stdout.write(json.dumps([dataclasses.asdict(row) for row in table.rows], indent=2) + "\n")
    else:
        sys.stdout.write(table.markdown(across=len(table.rows) <= LONGEST_TABLE))
    return 0


if __name__ == "__main__":
    cli.run(main)
