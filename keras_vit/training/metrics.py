"""Writing of a run's metrics to `metrics.jsonl`, one JSON object per line, and to trackers."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_vit.runs.errors import StorageError
from keras_vit.runs.run_directory import METRICS, TENSORBOARD, read_metrics
from keras_vit.training.trackers import TRACKERS
from keras_vit.util import file_io


class MetricsWriter:
    """Writer of a run's metrics to `metrics.jsonl` and to its trackers.

    Lines that were written after `step`, which a killed run may have left, are removed. Without a directory, nothing is
    written.
    """

    def __init__(self, directory: str | None, step: int, track: Sequence[str] = ("tensorboard",)):
        self.directory = directory
        self.trackers: list[Any] = []
        if directory is None:
            return
        file_io.check_writable(directory)
        self.path = os.path.join(directory, METRICS)
        with _writing(self.path):
            if os.path.exists(self.path):  # also drops damaged lines
                kept = [line for line in read_metrics(directory) if line.get("last_step", line["step"]) <= step]
                file_io.write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))
        self.trackers = [TRACKERS[name](directory, step) for name in track]

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Write one line: `step`, then `values` (numbers and strings)."""
        if self.directory is None:
            return
        with _writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        kind = "train" if "loss" in values else "eval"
        numbers = {
            name.removeprefix("eval_"): value for name, value in values.items() if isinstance(value, int | float)
        }
        with _writing(TENSORBOARD):
            for tracker in self.trackers:
                tracker.write(step, kind, numbers)

    def close(self) -> None:
        """End the records of the trackers."""
        with _writing(TENSORBOARD):
            for tracker in self.trackers:
                tracker.close()


@contextlib.contextmanager
def _writing(path: str) -> Iterator[None]:
    """Raise `StorageError` for a file that cannot be written."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        reason = str(error).split("\n", 1)[0]
        raise StorageError(f"Could not write {path}: {reason}. Free some space, then start again.") from error
