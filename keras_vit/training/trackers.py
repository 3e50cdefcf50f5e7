"""Trackers of metrics: TensorBoard, Weights & Biases, MLflow.

A resumed run continues its record in each tracker: `DIR/trackers.json` contains the identifiers of these records. The
environment variables and configuration of each tracker set its server, project and account.
"""

import functools
import importlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from keras_vit.runs.errors import TrainingError
from keras_vit.runs.run_directory import TENSORBOARD, read_config
from keras_vit.runs.run_fields import flatten
from keras_vit.util import extras, file_io, formatting

RECORD = "trackers.json"


class TensorBoard:
    """Writer of TensorBoard events that does not need the package `tensorboard`.

    DIR/tensorboard/train/   metrics of training steps
    DIR/tensorboard/eval/    results of evaluations

    Training and evaluation use the same tags, so that TensorBoard draws both in one chart.
    """

    def __init__(self, directory: str, step: int):
        self.directory, self.step, self.files = directory, step, dict[str, tf.io.TFRecordWriter]()

    def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Write the metrics of a step; `kind` is "train" or "eval"."""
        if kind not in self.files:
            self._open(kind)
        metadata = tf.compat.v1.SummaryMetadata(data_class=1)  # DATA_CLASS_SCALAR
        metadata.plugin_data.plugin_name = "scalars"
        summary = tf.compat.v1.Summary()
        for name, value in values.items():
            summary.value.add(tag=name, metadata=metadata, tensor=tf.make_tensor_proto(value, tf.float32))
        self._add(kind, step=step, summary=summary)
        self.files[kind].flush()

    def close(self) -> None:
        """Close the event files."""
        for file in self.files.values():
            file.close()

    def _open(self, kind: str) -> None:
        """Begin a new file. TensorBoard drops the events after the last checkpoint, which a resumed run repeats."""
        folder = os.path.join(self.directory, TENSORBOARD, kind)
        os.makedirs(folder, exist_ok=True)
        # TensorBoard reads the files in the order of their names.
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}"
        self.files[kind] = tf.io.TFRecordWriter(os.path.join(folder, name))
        self._add(kind, file_version="brain.Event:2")
        if self.step:
            start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
            self._add(kind, step=self.step + 1, session_log=start)

    def _add(self, kind: str, **fields: Any) -> None:
        self.files[kind].write(tf.compat.v1.Event(wall_time=time.time(), **fields).SerializeToString())


class Remote:
    """Tracker with its own package. An error of the tracker ends only the first start of a run."""

    def __init__(self, package: str, directory: str, step: int):
        self.package, self.failed = package, False
        self.log: Callable = print  # not called unless the record has begun
        self.end: Callable = print
        path = os.path.join(directory, RECORD)
        resumed = step > 0 or os.path.exists(path)
        try:
            self._start(directory, path)
        except Exception as error:
            if not resumed:
                raise TrainingError(
                    f"--track={package} cannot record this run: {formatting.one_line(error)}. Check the server and the "
                    f"account, or start without --track={package}."
                ) from error
            self._warn(error)

    def _start(self, directory: str, path: str) -> None:
        """Begin the record, or continue the record of a resumed run."""
        try:
            known = file_io.read_json(path, dict) if os.path.exists(path) else {}
        except ValueError as error:
            logging.warning(
                "The tracker starts a new run, because the record of the earlier run cannot be read: %s",
                formatting.one_line(error),
            )
            known = {}
        fields, name = flatten(read_config(directory)["recipe"]), os.path.basename(os.path.abspath(directory))
        start = {"wandb": _start_wandb, "mlflow": _start_mlflow}[self.package]
        identity, self.log, self.end = start(directory, name, known.get(self.package), fields)
        file_io.write_json(path, {**known, self.package: identity})

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
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        self.failed = True
        logging.warning("%s will not record further metrics of this run: %s", self.package, formatting.one_line(error))


# Each function takes the directory and name of a run, the identifier of the record to continue or None, and the fields
# of the recipe. The function returns the identifier of the record, a function of (values, step=step) that logs values,
# and a function that finishes the record.
def _start_wandb(directory: str, name: str, known: str | None, fields: dict) -> tuple[str, Callable, Callable]:
    run = require("wandb").init(dir=directory, name=name, id=known, resume="allow", config=fields)
    # W&B ignores steps that do not increase, and a resumed run repeats the steps after its checkpoint. The step is
    # therefore a metric, and W&B counts the calls.
    for kind in ("train/*", "eval/*"):
        run.define_metric(kind, step_metric="step")
    return run.id, lambda values, step: run.log({**values, "step": step}), run.finish


def _start_mlflow(directory: str, name: str, known: str | None, fields: dict) -> tuple[str, Callable, Callable]:
    mlflow = require("mlflow")
    run = mlflow.start_run(run_id=known, run_name=None if known else name)
    if not known:
        mlflow.log_params({field: str(value)[:500] for field, value in fields.items()})  # MLflow's limit
    return run.info.run_id, mlflow.log_metrics, mlflow.end_run


TRACKERS: dict[str, Callable[[str, int], Any]] = {  # of a run directory and the step from which the run resumes
    "tensorboard": TensorBoard,
    "wandb": functools.partial(Remote, "wandb"),
    "mlflow": functools.partial(Remote, "mlflow"),
}


def require(package: str) -> Any:
    """Return a tracker's package. If the package is not installed, the ImportError names the extra to install."""
    with extras.needed(package, f"--track={package} needs the package {package}"):
        return importlib.import_module(package)
