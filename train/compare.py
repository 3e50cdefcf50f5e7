"""Compare runs: their recipes and results.

    keras-vit compare runs/adamw runs/sgd
    keras-vit compare runs/adamw runs/sweep --json

Each argument is the directory of a run, finished or not, or of a sweep, which stands for all of its runs. Other paths
and damaged runs are skipped, so that runs/* is fine. The tables are written to standard output as Markdown.
TensorBoard draws the curves.
"""

import json
import sys
from collections.abc import Sequence

from absl import flags

from keras_vit import program
from keras_vit.program import common_flags

common_flags.define_json_flag("tables")

with program.imports(__name__):
    from keras_vit import experiments


def main(argv: Sequence[str]) -> int:
    comparison = experiments.compare(argv[1:])
    as_json = flags.FLAGS.json
    sys.stdout.write(json.dumps(comparison.to_dict(), indent=2) + "\n" if as_json else comparison.markdown())
    return 0


if __name__ == "__main__":
    program.run(main)
