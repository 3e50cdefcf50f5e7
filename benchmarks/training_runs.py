"""Functions that run the programs of `train/` in separate processes and read their results."""

import os
import subprocess
import sys
from collections.abc import Sequence

from absl import logging

from benchmarks import host
from keras_vit.runs import run_directory


def run_program(name: str, arguments: Sequence[str]) -> bytes:
    """Run a program of `train/` and return its output."""
    logging.info("train.%s %s", name, " ".join(arguments))
    return subprocess.run(
        [sys.executable, "-m", f"train.{name}", *arguments], stdout=subprocess.PIPE, check=True
    ).stdout


def last_value(directory: str, metric: str = "eval_accuracy") -> float:
    """Return the value of a metric of a run after its last step, as papers report it, whichever weights are chosen."""
    lines = [line for line in run_directory.read_metrics(directory) if metric in line]
    return max(lines, key=lambda line: line["step"])[metric]


def machine(directory: str) -> str:
    """Return the machine and the package versions of a run."""
    versions = run_directory.read_config(directory)["versions"]
    shown = [f"{name} {versions[name]}" for name in ("tensorflow", "tensorflow-cpu", "keras") if name in versions]
    return f"{os.cpu_count()} cores, {host.processor()}, {', '.join(shown)}"
