"""Programs of `train/`, each in a process of its own, and what their runs leave behind."""

import os
import subprocess
import sys
from collections.abc import Sequence

from absl import logging

from benchmarks import host
from keras_vit.training import run_directory


def run_program(name: str, arguments: Sequence[str]) -> bytes:
    """Run a program of `train/` and return its output."""
    logging.info("train.%s %s", name, " ".join(arguments))
    return subprocess.run(
        [sys.executable, "-m", f"train.{name}", *arguments], stdout=subprocess.PIPE, check=True
    ).stdout


def last_value(directory: str, metric: str = "eval_accuracy") -> float:
    """Return the last value of a metric of a run."""
    lines = run_directory.read_metrics(directory)
    return [line[metric] for line in lines if metric in line][-1]


def machine(directory: str) -> str:
    """Return the machine, and the versions that a run was made with."""
    versions = run_directory.read_config(directory)["versions"]
    shown = [f"{name} {versions[name]}" for name in ("tensorflow", "tensorflow-cpu", "keras") if name in versions]
    return f"{os.cpu_count()} cores, {host.processor()}, {', '.join(shown)}"
