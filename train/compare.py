"""Compare runs: their recipes, curves and results.

    keras-vit compare runs/adamw runs/sgd
    keras-vit compare runs/adamw runs/sweep --output=comparison

Each argument is the directory of a run, finished or not, or of a sweep, which stands for all of its runs. Other paths
and damaged runs are skipped, so that runs/* is fine. The tables
are written to standard output. With --output they are also written as a page, comparison.html, which shows the curves
and needs no network, and as comparison.md and comparison.json.
"""

import json
import sys
from collections.abc import Sequence

from absl import flags

from keras_vit import program
from keras_vit.program import common_flags

common_flags.define_output_flag("Directory for the page and the tables.")
common_flags.define_json_flag("tables")

with program.imports(__name__):
    from keras_vit import experiments


def main(argv: Sequence[str]) -> int:
    comparison = experiments.compare(argv[1:])
    if flags.FLAGS.json:
        sys.stdout.write(json.dumps(comparison.to_dict(), indent=2) + "\n")
    else:
        sys.stdout.write(comparison.markdown())
    if flags.FLAGS.output:
        path = experiments.write_comparison(comparison, flags.FLAGS.output)
        sys.stderr.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    program.run(main)
