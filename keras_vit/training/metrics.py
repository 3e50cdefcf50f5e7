"""Metrics of a run: a line of JSON and TensorBoard events each."""

import json
import os

from absl import logging

from keras_vit import _io
from keras_vit.training import tensorboard
from keras_vit.training.run_directory import METRICS, TENSORBOARD


class MetricsWriter:
    """Appends to `metrics.jsonl` and to the TensorBoard events of a run.

    Args:
        directory: The run directory; None writes nothing.
        step: Step at which the run starts; lines of later steps, which a killed run left, are removed.

    Raises:
        StorageError: If a file cannot be written, for example because the disk is full.
    """

    def __init__(self, directory: str | None, step: int):
        self.directory = directory
        if directory is None:
            return
        self.path = os.path.join(directory, METRICS)
        with tensorboard.writing(self.path):
            forget_after(self.path, step)
        self.events = tensorboard.ScalarWriter(directory)

    def write(self, step: int, values: dict) -> None:
        """Write one line: `step`, then `values` (numbers and strings)."""
        if self.directory is None:
            return
        with tensorboard.writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        with tensorboard.writing(TENSORBOARD):
            self.events.write(step, values)

    def close(self) -> None:
        """End the TensorBoard file."""
        if self.directory is None:
            return
        with tensorboard.writing(TENSORBOARD):
            self.events.close()


def forget_after(path: str, step: int) -> None:
    """Remove the lines of steps after `step` from a file of metrics, and all damaged lines."""
    if os.path.exists(path):
        kept = [line for line in read_metrics(path) if line["step"] <= step]
        _io.write_text(path, "".join(json.dumps(line) + "\n" for line in kept))


def read_metrics(path: str) -> list[dict]:
    """Return the lines of a `metrics.jsonl`, without damaged ones, such as a last line that was cut off."""
    lines, damaged = _io.read_json_lines(path)
    whole = [line for line in lines if isinstance(line.get("step"), int)]
    damaged += len(lines) - len(whole)
    if damaged:
        logging.warning("%s has %d damaged lines, which are ignored.", path, damaged)
    return whole
