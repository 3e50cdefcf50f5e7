"""Metrics of a run: a line of JSON and TensorBoard events each. The events are written without TensorBoard.

DIR/metrics.jsonl        a JSON object per line
DIR/tensorboard/train/   the numbers of training steps
DIR/tensorboard/eval/    the results of evaluations; with the same tags, so that TensorBoard draws both on one chart
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from keras_vit import _io
from keras_vit.training.errors import StorageError
from keras_vit.training.run_directory import METRICS, TENSORBOARD, read_metrics


class MetricsWriter:
    """Appends to `metrics.jsonl` and to the TensorBoard events of a run.

    Lines of steps after `step`, which a killed run left, are removed. Without a directory, nothing is written.
    """

    def __init__(self, directory: str | None, step: int):
        self.directory = directory
        self.events: dict[str, Any] = {}
        if directory is None:
            return
        _io.check_writable(directory)
        self.path = os.path.join(directory, METRICS)
        with _writing(self.path):
            if os.path.exists(self.path):  # without damaged lines, too
                kept = [line for line in read_metrics(directory) if line["step"] <= step]
                _io.write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Write one line: `step`, then `values` (numbers and strings)."""
        if self.directory is None:
            return
        with _writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        with _writing(TENSORBOARD):
            self._write_events(self.directory, step, values)

    def close(self) -> None:
        """End the TensorBoard files."""
        with _writing(TENSORBOARD):
            for writer in self.events.values():
                writer.close()

    def _write_events(self, directory: str, step: int, values: Mapping[str, Any]) -> None:
        kind = "train" if "loss" in values else "eval"
        if kind not in self.events:
            self.events[kind] = tf.summary.create_file_writer(os.path.join(directory, TENSORBOARD, kind))
        metadata = tf.compat.v1.SummaryMetadata(data_class=1)  # DATA_CLASS_SCALAR
        metadata.plugin_data.plugin_name = "scalars"
        with self.events[kind].as_default(step):
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    tf.summary.write(name.removeprefix("eval_"), tf.constant(value, tf.float32), metadata=metadata)
        self.events[kind].flush()


@contextlib.contextmanager
def _writing(path: str) -> Iterator[None]:
    """Raise `StorageError` for a file that cannot be written."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        reason = str(error).split("\n", 1)[0]
        raise StorageError(f"Could not write {path}: {reason}. Free some space, then start again.") from error
