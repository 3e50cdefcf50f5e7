"""Measure latency, throughput, memory and size of a model and its artifacts, side by side.

    keras-vit benchmark --model=runs/digits --artifacts=served/digits,digits.tflite
    keras-vit benchmark --artifacts=a.tflite,b.tflite --batch_sizes=1 --threads=1 --calls=200

The model and each artifact run one after the other, each in a separate process, so that no measurement affects another.
The time is measured from preprocessed images to probabilities. The table also shows the precision of the computation on
this machine, and the top-1 agreement with the model, measured during the export. Run the program on an idle machine.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags, logging

from keras_vit import cli
from keras_vit.cli import common_flags

common_flags.define_model_flags(class_names=False)
flags.DEFINE_list("artifacts", [], "SavedModels, TFLite, ONNX and OpenVINO files to measure, comma-separated.")
flags.DEFINE_list("batch_sizes", ["1", "4", "8"], "Images per call.")
flags.DEFINE_integer("threads", os.cpu_count() or 1, "Threads of the kernels.", 1)
flags.DEFINE_integer("calls", 50, "Timed calls for each artifact and batch size.", 1)
common_flags.define_json_flag()
flags.DEFINE_string("worker", None, "For internal use: path that this process measures.")

with cli.imports(__name__):
    import tensorflow as tf

    from keras_vit.inference import model_card, open_predictor

    from . import latency


def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    if options.worker:
        for row in measure(options.worker):
            sys.stdout.write(json.dumps(row) + "\n")
        return 0
    paths = [path for path in (options.model, *options.artifacts) if path]
    if not paths:
        raise ValueError("Nothing to measure: pass --model, or --artifacts (exported files).")
    rows, failed = [], 0
    for path in paths:
        logging.info("Measuring %s", path)
        command = worker_command(path, path == options.model)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=cli.terminal(), text=True, check=False)
        if done.returncode:
            logging.error("%s could not be measured (exit code %d)", path, done.returncode)
            failed += 1
            continue
        rows += [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if options.json:
        sys.stdout.write("".join(json.dumps(row) + "\n" for row in rows))
    elif rows:
        sys.stdout.write(latency.table(rows) + latency.fastest(rows))
    return 1 if failed else 0


def measure(path: str) -> Iterator[dict[str, Any]]:
    """Yield the measurements of one artifact."""
    options = flags.FLAGS
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    predictor = open_predictor(path, num_threads=options.threads, **common_flags.model_options())
    predictor.prepare_for_many()
    agreement = predictor.card.verification.get("top1_agreement")
    run = os.path.join(predictor.path, "model.keras")
    size = model_card.size_of(run if os.path.exists(run) else predictor.path)
    for batch_size in options.batch_sizes:
        about: dict[str, Any] = {"path": path, "kind": predictor.kind, "precision": predictor.runtime_precision}
        about |= {"agreement": agreement, "threads": options.threads}
        measured = latency.measure(predictor, int(batch_size), options.calls)
        yield {**measured, **about, "bytes": size, "peak_memory": latency.peak_memory()}


def worker_command(path: str, is_model: bool) -> list[str]:
    """Return the command that measures one path. Only the model gets flags such as `--preprocess`."""
    options = flags.FLAGS
    sizes = ",".join(options.batch_sizes)
    names = common_flags.model_options() if is_model else ()
    known = [f"--{name}={options[name].value}" for name in names if options[name].value]
    return [
        *(sys.executable, "-m", "keras_vit", "benchmark", f"--worker={path}"),
        *(f"--batch_sizes={sizes}", f"--threads={options.threads}", f"--calls={options.calls}"),
        *known,
    ]


if __name__ == "__main__":
    cli.run(main)
