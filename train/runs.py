"""List runs with their states and scores, and the commands that resume unfinished runs.

    keras-vit runs
    keras-vit runs runs/images runs/sweep --json

Each argument is a run, a sweep, or a folder of runs; the default is `runs`. To resume an unfinished run, use the
command below the table on a machine that has the data. The command reads the recipe from the config.json of the run.
"""

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

common_flags.define_json_flag("a table")

with cli.imports(__name__):
    from keras_vit.runs import Run, run_directory
    from keras_vit.util import formatting

    from . import experiments


def main(argv: Sequence[str]) -> int:
    as_json = flags.FLAGS.json
    found = [describe(run, as_json) for run in experiments.read_runs(argv[1:] or ["runs"])]
    if as_json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return 0
    columns = ("run", "state", "score", "last", "best", "updated")
    sys.stdout.write(formatting.markdown_table(columns, [[run[name] for name in columns] for run in found]) + "\n")
    if commands := [run["resume"] for run in found if run["resume"]]:
        sys.stdout.write("\n".join(["", "To resume:", *commands]) + "\n")
    return 0


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
