"""Trackers of metrics: TensorBoard, Weights & Biases, MLflow.

A resumed run continues its record in each tracker: `DIR/trackers.json` contains the identifiers of these records. The
environment variables and configuration of each tracker set its server, project and account.
"""

import functools
import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from keras_vit import _extras, _io
from keras_vit.training.run_directory import TENSORBOARD, read_config
from keras_vit.training.run_fields import flatten

RECORD = "trackers.json"


class TensorBoard:
    """Writer of TensorBoard events that does not need the package `tensorboard`.

    DIR/tensorboard/train/   metrics of training steps
    DIR/tensorboard/eval/    results of evaluations

    Training and evaluation use the same tags, so that TensorBoard draws both in one chart.
    """

    def __init__(self, directory: str):
        self.directory, self.events = directory, dict[str, Any]()

    def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Write the metrics of a step; `kind` is "train" or "eval"."""
        if kind not in self.events:
            self.events[kind] = tf.summary.create_file_writer(os.path.join(self.directory, TENSORBOARD, kind))
        metadata = tf.compat.v1.SummaryMetadata(data_class=1)  # DATA_CLASS_SCALAR
        metadata.plugin_data.plugin_name = "scalars"
        with self.events[kind].as_default(step):
            for name, value in values.items():
                tf.summary.write(name, tf.constant(value, tf.float32), metadata=metadata)
        self.events[kind].flush()

    def close(self) -> None:
        """Close the event files."""
        for writer in self.events.values():
            writer.close()


class Remote:
    """Tracker with its own package. An error of the tracker does not end training."""

    def __init__(self, package: str, directory: str):
        path = os.path.join(directory, RECORD)
        known = _io.read_json(path) if os.path.exists(path) else {}
        fields, name = flatten(read_config(directory)["recipe"]), os.path.basename(os.path.abspath(directory))
        start = {"wandb": _start_wandb, "mlflow": _start_mlflow}[package]
        identity, self.log, self.end = start(directory, name, known.get(package), fields)
        self.package, self.failed = package, False
        _io.write_json(path, {**known, package: identity})

    def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Record the metrics of a step; `kind` is "train" or "eval"."""
        self._try(self.log, {f"{kind}/{name}": value for name, value in values.items()}, step=step)

    def close(self) -> None:
        """Finish the record."""
        self._try(self.end)

    def _try(self, call: Callable, *values: Any, **step: int) -> None:
        try:
            if not self.failed:
                call(*values, **step)
        except Exception as error:  # trackers raise many kinds of errors for network failures
            self.failed = True
            logging.warning("%s will not record further metrics of this run: %s", self.package, _io.one_line(error))


# Each function takes the directory and name of a run, the identifier of the record to continue or None, and the fields
# of the recipe. The function returns the identifier of the record, a function of (values, step=step) that logs values,
# and a function that finishes the record.
def _start_wandb(directory: str, name: str, known: str | None, fields: dict) -> tuple[str, Callable, Callable]:
    run = require("wandb").init(dir=directory, name=name, id=known, resume="allow", config=fields)
    return run.id, run.log, run.finish


def _start_mlflow(directory: str, name: str, known: str | None, fields: dict) -> tuple[str, Callable, Callable]:
    mlflow = require("mlflow")
    run = mlflow.start_run(run_id=known, run_name=None if known else name)
    if not known:
        mlflow.log_params({field: str(value)[:500] for field, value in fields.items()})  # MLflow's limit
    return run.info.run_id, mlflow.log_metrics, mlflow.end_run


TRACKERS: dict[str, Callable[[str], Any]] = {
    "tensorboard": TensorBoard,
    "wandb": functools.partial(Remote, "wandb"),
    "mlflow": functools.partial(Remote, "mlflow"),
}


def require(package: str) -> Any:
    """Return a tracker's package. If the package is not installed, the ImportError names the extra to install."""
    with _extras.needed(package, f"--track={package} needs the package {package}"):
        return importlib.import_module(package)
