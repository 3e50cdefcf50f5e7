"""List runs with their states and scores, and the commands that resume them, or compare runs.

    keras-vit runs
    keras-vit runs runs/adamw runs/sgd
    keras-vit runs runs/sweep --compare --json

Each argument is a run, a sweep, or a folder of runs; the default is `runs`. Paths without a run, and damaged runs, are
skipped. To resume an unfinished run, use the command below the list on a machine that has the data. The command reads
the recipe from the config.json of the run.

The names of two or more runs compare their results, and the fields of the recipe, the data and the versions in which
they differ. So does --compare for the runs of a sweep or a folder. Use TensorBoard to see learning curves.
"""

import dataclasses
import datetime
import json
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from keras_vit import cli
from keras_vit.cli import common_flags

flags.DEFINE_bool("compare", None, "Compare the runs; by default if two or more are named.")
common_flags.define_json_flag("a table")

with cli.imports(__name__):
    from keras_vit.runs import Run, run_directory
    from keras_vit.util import formatting

    from . import experiments

LONGEST_TABLE = 6  # maximum number of runs in columns; with more runs, each run is a row


def main(argv: Sequence[str]) -> int:
    options, paths = flags.FLAGS, argv[1:] or ["runs"]
    write = compare if options.compare or (options.compare is None and len(paths) > 1) else list_runs
    sys.stdout.write(write(paths, options.json))
    return 0


def compare(paths: Sequence[str], as_json: bool) -> str:
    """Return the comparison of runs as a text."""
    table = experiments.compare(paths)
    if as_json:
        return json.dumps([dataclasses.asdict(row) for row in table.rows], indent=2) + "\n"
    return table.markdown(across=len(table.rows) <= LONGEST_TABLE)


def list_runs(paths: Sequence[str], as_json: bool) -> str:
    """Return the list of runs as a text, with the commands that resume them."""
    found = [describe(run, as_json) for run in experiments.read_runs(paths)]
    if as_json:
        return json.dumps(found, indent=2) + "\n"
    columns = ("run", "state", "score", "last", "best", "updated")
    text = formatting.markdown_table(columns, [[run[name] for name in columns] for run in found]) + "\n"
    commands = [run["resume"] for run in found if run["resume"]]
    return text + "".join(f"{line}\n" for line in (["", "To resume:", *commands] if commands else []))


def describe(run: Run, as_json: bool = False) -> dict[str, Any]:
    """Return the table's entries for a run, and the command that resumes it; None if it is finished or running."""
    score = experiments.metric_of_run(run)
    lines = sorted(run.lines, key=lambda line: line["step"])  # the chosen weights are evaluated again
    scores = [line[score.name] for line in lines if score.name in line]
    last, best = (scores[-1], max(scores, key=score.goodness)) if scores else (None, None)
    metrics, config = (os.path.join(run.path, name) for name in (run_directory.METRICS, run_directory.CONFIG))
    written = datetime.datetime.fromtimestamp(os.path.getmtime(metrics if os.path.exists(metrics) else config))
    resume = f"keras-vit train --config={shlex.quote(config)} --workdir={shlex.quote(run.path)}"
    return {
        "run": run.path,
        "state": run.state,
        "score": score.name,
        "last": last if as_json else score.text(last),
        "best": best if as_json else score.text(best),
        "updated": f"{written:%Y-%m-%d %H:%M}",
        "resume": resume if run.state.startswith("step") else None,
    }


if __name__ == "__main__":
    cli.run(main)
