"""Measures how long checkpoints take to load and how much memory, on files of published size with random weights.

    python -m train.benchmark_loading --variant=ViT-B/16 --rounds=5
    python -m train.benchmark_loading --variant=ViT-L/16 --json=loading.json

The file is written once to a temporary directory. Each round loads it into a model that is built already, in a process
of its own; memory is the peak of that process, the libraries included.
"""

import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time

from absl import flags, logging

import keras_vit
from keras_vit import program
from keras_vit.checkpoints import load_checkpoint, save_checkpoint

flags.DEFINE_string("variant", "ViT-B/16", "Name of the model, as in keras_vit.list_models().")
flags.DEFINE_integer("rounds", 3, "How often to load.", 1)
flags.DEFINE_string("json", None, "File for the figures.")

CLASSES = 21_843  # the heads of the published files that were trained on ImageNet-21k


def write_file(variant, path):
    save_checkpoint(keras_vit.create_model(variant, classes=CLASSES), path)


def load_once(variant, path, answers):
    """Loads the file and puts (seconds, peak before, peak after) in MiB."""
    model = keras_vit.create_model(variant, classes=CLASSES)
    before = peak_memory()
    start = time.perf_counter()
    load_checkpoint(model, path)
    answers.put((time.perf_counter() - start, before, peak_memory()))


def peak_memory():
    """Returns the peak resident memory of this process in MiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def in_a_process(function, *arguments, answer=False):
    """Runs a function in a fresh process, and returns what it puts."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=function, args=(*arguments, answers) if answer else arguments)
    process.start()
    result = answers.get() if answer else None
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{function.__name__} failed.")
    return result


def main(argv):
    del argv
    options = flags.FLAGS
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "weights.npz")
        in_a_process(write_file, options.variant, path)
        size = os.path.getsize(path) / 2**20
        logging.info("%s: a file of %.0f MiB.", options.variant, size)
        rounds = []
        for _ in range(options.rounds):
            seconds, before, after = in_a_process(load_once, options.variant, path, answer=True)
            logging.info("Loaded in %.2f s; peak memory %.0f MiB, of which %.0f MiB before.", seconds, after, before)
            rounds.append({"seconds": seconds, "peak_mib": after, "peak_before_mib": before})
    result = {"variant": options.variant, "file_mib": size, "cores": os.cpu_count(), "rounds": rounds}
    result["best_seconds"] = min(entry["seconds"] for entry in rounds)
    result["peak_mib"] = max(entry["peak_mib"] for entry in rounds)
    logging.info("Best of %d: %.2f s, peak %.0f MiB.", options.rounds, result["best_seconds"], result["peak_mib"])
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=2)


def run():
    program.run(main)


if __name__ == "__main__":
    run()
