"""Metrics of a run: a line of JSON and TensorBoard events each."""

import json
import os

from keras_vit import _io
from keras_vit.training import tensorboard
from keras_vit.training.run_directory import METRICS, TENSORBOARD, read_metrics


class MetricsWriter:
    """Appends to `metrics.jsonl` and to the TensorBoard events of a run.

    Lines of steps after `step`, which a killed run left, are removed. Without a directory, nothing is written.
    """

    def __init__(self, directory: str | None, step: int):
        self.directory = directory
        if directory is None:
            return
        self.path = os.path.join(directory, METRICS)
        with tensorboard.writing(self.path):
            _forget_after(directory, step)
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


def _forget_after(directory: str, step: int) -> None:
    """Remove the lines of steps after `step` from the metrics of a run, and all damaged lines."""
    kept = [line for line in read_metrics(directory) if line["step"] <= step]
    path = os.path.join(directory, METRICS)
    if os.path.exists(path):
        _io.write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
