"""Measure the accuracy of the demo recipe, and write it to benchmarks/demo.json and docs/results.md.

    python -m benchmarks.demo --workdir=runs/demo    # trains and evaluates; about four CPU minutes per backend
    python -m benchmarks.demo --tables_only          # writes the table again

The table in docs/results.md is generated from benchmarks/demo.json. Finished runs in the directory are not repeated.
Processor times are summed over all cores.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags, logging

from benchmarks import host, tables
from keras_vit import cli
from keras_vit.runs import run_directory
from keras_vit.util import file_io, formatting

MEASURED = os.path.join(os.path.dirname(__file__), "demo.json")
DOCUMENT = "docs/results.md"
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX"}
CPU_SECONDS = "cpu_seconds.json"

flags.DEFINE_string("workdir", None, "Directory for the runs; finished runs are not repeated.")
flags.DEFINE_multi_enum("backends", list(BACKENDS), list(BACKENDS), "Backends to train with.")
flags.DEFINE_multi_string("config", ["digits"], "Recipe, followed by changes such as total_steps=10 for a trial.")
flags.DEFINE_string("measured", MEASURED, "File to write the measurements to.")
flags.DEFINE_string("document", DOCUMENT, "Page to write the table to.")
flags.DEFINE_bool("tables_only", False, "Write the table without measuring.")


def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    if not options.tables_only:
        if not options.workdir:
            raise ValueError("--workdir is missing: the directory for the runs.")
        for backend in options.backends:
            measured = file_io.read_json(options.measured) if os.path.exists(options.measured) else {}
            measured[backend] = measure(backend, os.path.join(options.workdir, backend))
            file_io.write_json(options.measured, measured)
    tables.write_between(options.document, "demo", f"\n{table(file_io.read_json(options.measured))}\n")
    return 0


def measure(backend: str, directory: str) -> dict[str, Any]:
    """Train the demo with a backend unless its run is finished, and return the results on the test digits."""
    seconds = os.path.join(directory, CPU_SECONDS)
    if not os.path.exists(seconds):
        recipe, *changes = flags.FLAGS.config
        overrides = [f"--config.{change}" for change in changes]
        before = sum(os.times()[2:4])
        run_program(backend, ["train", f"--config={recipe}", f"--workdir={directory}", *overrides])
        file_io.write_json(seconds, {"seconds": sum(os.times()[2:4]) - before})
    found = json.loads(run_program(backend, ["evaluate", f"--model={directory}", "--json"]))
    config = run_directory.read_config(directory)
    return {
        "accuracy": found["accuracy"],
        "examples": found["examples"],
        "steps": config["recipe"]["total_steps"],
        "seed": config["recipe"]["seed"],
        "cpu_minutes": round(file_io.read_json(seconds)["seconds"] / 60, 1),
        "machine": host.processor(),
        "versions": config["versions"],
    }


def run_program(backend: str, arguments: Sequence[str]) -> bytes:
    """Run a command of `keras-vit` and return its output."""
    logging.info("%s: keras-vit %s", BACKENDS[backend], " ".join(arguments))
    environment = {**os.environ, "KERAS_BACKEND": backend}
    command = [sys.executable, "-m", "keras_vit", *arguments]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout


def table(measured: Mapping[str, Any]) -> str:
    """Return the table of all backends."""
    header = ("backend", "steps:", "seed:", "test digits:", "accuracy:", "CPU minutes:")
    rows = [
        (
            BACKENDS[backend],
            f"{found['steps']:,}",
            str(found["seed"]),
            str(found["examples"]),
            f"{found['accuracy']:.2%}",
            f"{found['cpu_minutes']:.1f}",
        )
        for backend, found in measured.items()
    ]
    return formatting.markdown_table(header, rows)


if __name__ == "__main__":
    cli.run(main)
