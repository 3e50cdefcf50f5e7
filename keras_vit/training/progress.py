"""How a run shows itself: a bar on a terminal, log lines elsewhere; a line of JSON and TensorBoard events always."""

import json
import os
import sys
import time

import tensorflow as tf
from absl import logging

from keras_vit.training.run_directory import METRICS, TENSORBOARD, write_atomically


class MetricsWriter:
    """Appends to `metrics.jsonl` and to the TensorBoard events of a run.

    Args:
        directory: of the run.
        step: at which the run starts; lines of later steps, which a killed run left, are removed.
    """

    def __init__(self, directory: str, step: int):
        self.path = os.path.join(directory, METRICS)
        forget_after(self.path, step)
        self.events = tf.summary.create_file_writer(os.path.join(directory, TENSORBOARD))

    def write(self, step: int, values: dict) -> None:
        """Writes one line: `step`, then `values` (numbers and strings)."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        with self.events.as_default():
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    tf.summary.write(name, tf.constant(value, tf.float32), step, metadata=_scalar_metadata())
        self.events.flush()

    def close(self) -> None:
        """Ends the TensorBoard file."""
        self.events.close()


def forget_after(path: str, step: int) -> None:
    """Removes the lines of steps after `step` from a file of metrics, and a last line that was cut off."""
    if os.path.exists(path):
        kept = [line for line in read_metrics(path) if line["step"] <= step]
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept))


def read_metrics(path: str) -> list[dict]:
    """Returns the lines of a `metrics.jsonl`, without any that was cut off."""
    lines = []
    with open(path, encoding="utf-8") as file:
        for text in file:
            try:
                lines.append(json.loads(text))
            except ValueError:
                logging.warning("%s has a line that was cut off; it is ignored.", path)
    return lines


class ProgressBar:
    """One line that is rewritten on a terminal; on anything else nothing, where log lines tell the same.

    Args:
        first: step at which this process starts.
        total: last step.
        stream: where to draw; the default is standard error, beside the log.
    """

    def __init__(self, first: int, total: int, stream=None):
        self.first, self.total = first, total
        self.stream = stream or sys.stderr
        self.active = self.stream.isatty()
        self.started = None

    def update(self, step: int, loss: float, accuracy: float, images_per_second: float) -> None:
        """Draws the line anew."""
        now = time.monotonic()
        if self.started is None:  # the first steps compile, which says nothing about the others
            self.started, self.first = now, step
        if not self.active:
            return
        seconds = (now - self.started) / (step - self.first) * (self.total - step) if step > self.first else None
        filled = 24 * step // self.total
        line = (
            f"step {step}/{self.total} [{'=' * filled}{' ' * (24 - filled)}] loss {loss:.4f} accuracy {accuracy:.3f} "
            f"{images_per_second:,.0f} images/s, {duration(seconds)} left"
        )
        self.stream.write(f"\r\033[K{line}")
        self.stream.flush()

    def clear(self) -> None:
        """Removes the line, before something else is printed or at the end."""
        if self.active:
            self.stream.write("\r\033[K")
            self.stream.flush()


def duration(seconds: float | None) -> str:
    """Returns a number of seconds as `1:02:03`, `2:03` or `?`."""
    if seconds is None:
        return "?"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _scalar_metadata():
    """Returns what marks a tensor as a scalar for TensorBoard (TensorFlow writes events without TensorBoard, too)."""
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = "scalars"
    metadata.data_class = 1  # DATA_CLASS_SCALAR
    return metadata
