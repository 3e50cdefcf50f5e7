"""Runs as their directories record them."""

import os

from keras_vit.training import metrics, run_directory

_COUNTS = ("step", "examples")


def final_metrics(directory: str) -> dict[str, float]:
    """Return the last value of every metric of the evaluations of a run."""
    path = os.path.join(directory, run_directory.METRICS)
    found: dict[str, float] = {}
    for line in metrics.read_metrics(path) if os.path.exists(path) else []:
        if "loss" not in line:  # a line of training
            numbers = {name: value for name, value in line.items() if isinstance(value, (int, float))}
            found |= {name: value for name, value in numbers.items() if name not in _COUNTS}
    return found
