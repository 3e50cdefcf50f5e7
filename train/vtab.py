"""Fine-tune pretrained weights on the tasks of VTAB-1k, and average the results.

    keras-vit vtab --model=ViT_B16 --weights=imagenet21k --workdir=runs/vtab
    keras-vit vtab --model=ViT_B16 --weights=imagenet21k --workdir=runs/vtab --tasks=svhn --tasks=dtd
    keras-vit vtab --model=ViT_B16 --weights=imagenet21k --workdir=runs/vtab \
        --options="data_dir='/data'&download=True"

Each task is a run of the recipe `vtab` in its own directory, with its log in `output.txt`. Run the same command again
to resume. If the data set of a task is not prepared, or its run fails, the task is listed and the mean of its group is
omitted. The exit code is 1 if a run failed or no task was measured.
"""

import glob
import os
import sys
from collections.abc import Sequence

from absl import flags, logging

from keras_vit import cli
from keras_vit.cli import common_flags

flags.DEFINE_string("model", "ViT_B16", "Variant to train, such as ViT_S16.")
flags.DEFINE_string("weights", None, "Initial weights: a published name such as augreg, or a file.")
common_flags.define_written_flag("workdir", "Directory for all runs; finished runs in it are not repeated.", schemes=())
flags.DEFINE_multi_string("tasks", [], "Task to run, such as svhn; by default all tasks. May be repeated.")
flags.DEFINE_multi_string("set", [], "Override of the recipe, such as total_steps=2500. May be repeated.")
flags.DEFINE_string("options", "", "Options of the data sets, joined by &, such as \"data_dir='/data'&download=True\".")
common_flags.define_json_flag()

with cli.imports(__name__):
    from keras_vit import data, evaluators
    from keras_vit.evaluators import vtab
    from keras_vit.runs import errors, run_directory
    from keras_vit.util import file_io, signals
    from keras_vit.util.progress import track

    from .experiments import processes, runs


def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    if not options.workdir or not options.weights:
        raise ValueError("--workdir and --weights are needed: where to write, and the weights to start from.")
    vtab.check_tasks(options.tasks)
    accuracies, missing, failed = {}, {}, {}
    for task in track(options.tasks or vtab.TASKS, "Tasks", unit="tasks"):
        try:
            data.open_source(vtab.source_of(task, options.options), split=vtab.TEST)
        except (OSError, ImportError) as error:
            missing[task] = vtab.first_line(error)
            logging.warning("%s is missing: %s", task, missing[task])
            continue
        try:
            accuracies[task] = fine_tune(task)
        except errors.Interrupted:
            raise
        except errors.TrainingError as error:
            failed[task] = f"its run failed: {error}"
            logging.error("%s: %s", task, failed[task])
    metrics = {**accuracies, **vtab.means(accuracies)}
    results = [vtab.Vtab().describe(evaluators.Result(metrics, {**missing, **failed}))]
    write = evaluators.results_table.to_json if options.json else evaluators.results_table.table
    sys.stdout.write(f"{write(results)}\n")
    return 1 if failed or not accuracies else 0


def fine_tune(task: str) -> float:
    """Train on a task, unless its run is finished, and return the accuracy on its test set."""
    options = flags.FLAGS
    directory = os.path.join(options.workdir, task)
    arguments = [
        f"--config=vtab:{options.model},{task}",
        f"--config.data.source={vtab.source_of(task, options.options)}",
        f"--config.model.weights={options.weights}",
        f"--workdir={directory}",
        *(f"--config.{change}" for change in options.set),
    ]
    record = {"arguments": arguments, "weights": weights_sha256(options.weights)}
    record_path = f"{directory}.json"
    if run_directory.is_finished(directory):
        before = file_io.read_json(record_path) if os.path.exists(record_path) else record
        if before != record:
            raise ValueError(
                f"{directory} has a finished run of other arguments or weights. Pass another --workdir, or remove it. "
                f"Expected: {before}. Received: {record}."
            )
    else:
        file_io.write_json(record_path, record)
        logging.info("keras-vit train %s", " ".join(arguments))
        run_program([sys.executable, "-m", "keras_vit", "train", *arguments], os.path.join(directory, "output.txt"))
    return runs.final_metrics(directory)["eval_accuracy"]


def weights_sha256(weights: str) -> str | None:
    """Return the SHA-256 of a file or of the files in a directory; None for published weights."""
    files = [weights] if os.path.isfile(weights) else sorted(glob.glob(os.path.join(glob.escape(weights), "*.*")))
    return file_io.joint_sha256(filter(os.path.isfile, files)) if files else None


def run_program(command: Sequence[str], output: str) -> None:
    """Run a program and append its output to a file. If it fails, the error contains the last line of the output."""
    with signals.StopRequest() as stop:
        stop.defer()
        exit_code = processes.run(command, output, lambda: stop)
    last = processes.last_line(output)
    if stop or exit_code == errors.Interrupted.exit_code:
        raise errors.Interrupted(last)
    if exit_code == cli.WRONG_USAGE:  # the same for every task
        raise ValueError(f"The training program rejected its arguments: {last}")
    if exit_code:
        raise errors.TrainingError(f"exit code {exit_code}, {last}")


if __name__ == "__main__":
    cli.run(main)
