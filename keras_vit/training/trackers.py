"""Programs that draw the metrics of runs: TensorBoard, Weights & Biases, MLflow. Their packages are imported here.

A run that is resumed continues its record there: `DIR/trackers.json` has the names that the programs gave it. Server,
project and account are those of the programs' own environment variables and configuration.
"""

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from keras_vit import _io
from keras_vit.training.run_directory import TENSORBOARD, read_config
from keras_vit.training.run_fields import flatten

RECORD = "trackers.json"


class TensorBoard:
    """Events of TensorBoard, written without its package.

    DIR/tensorboard/train/   the numbers of training steps
    DIR/tensorboard/eval/    the results of evaluations; with the same tags, so that TensorBoard draws both on one chart
    """

    def __init__(self, directory: str):
        self.directory, self.events = directory, dict[str, Any]()

    def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Write the numbers of a step; `kind` is "train" or "eval"."""
        if kind not in self.events:
            self.events[kind] = tf.summary.create_file_writer(os.path.join(self.directory, TENSORBOARD, kind))
        metadata = tf.compat.v1.SummaryMetadata(data_class=1)  # DATA_CLASS_SCALAR
        metadata.plugin_data.plugin_name = "scalars"
        with self.events[kind].as_default(step):
            for name, value in values.items():
                tf.summary.write(name, tf.constant(value, tf.float32), metadata=metadata)
        self.events[kind].flush()

    def close(self) -> None:
        """End the files."""
        for writer in self.events.values():
            writer.close()


class _Remote:
    """A program with a package of its own. An error while it records does not end the training."""

    package: str

    def __init__(self, directory: str):
        path = os.path.join(directory, RECORD)
        known = _io.read_json(path) if os.path.exists(path) else {}
        fields = flatten(read_config(directory)["recipe"])
        name = os.path.basename(os.path.abspath(directory))
        self.failed = False
        identity = self.start(require(self.package), directory, name, known.get(self.package), fields)
        _io.write_json(path, {**known, self.package: identity})

    def start(self, package: Any, directory: str, name: str, known: str | None, fields: dict) -> str:
        """Begin or continue the record of a run, and return its identity."""
        raise NotImplementedError

    def log(self, step: int, values: dict[str, float]) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError

    def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        self._try(lambda: self.log(step, {f"{kind}/{name}": value for name, value in values.items()}))

    def close(self) -> None:
        self._try(self.end)

    def _try(self, call: Callable[[], None]) -> None:
        if self.failed:
            return
        try:
            call()
        except Exception as error:  # whatever a network brings
            self.failed = True
            logging.warning("%s records no further metrics of this run: %s", self.package, _io.one_line(error))


class WeightsAndBiases(_Remote):
    """A run of Weights & Biases."""

    package = "wandb"

    def start(self, package: Any, directory: str, name: str, known: str | None, fields: dict) -> str:
        self.run = package.init(dir=directory, name=name, id=known, resume="allow", config=fields)
        return self.run.id

    def log(self, step: int, values: dict[str, float]) -> None:
        self.run.log(values, step=step)

    def end(self) -> None:
        self.run.finish()


class MLflow(_Remote):
    """A run of MLflow."""

    package = "mlflow"

    def start(self, package: Any, directory: str, name: str, known: str | None, fields: dict) -> str:
        self.mlflow = package
        run = package.start_run(run_id=known, run_name=None if known else name)
        if not known:
            package.log_params({field: str(value)[:500] for field, value in fields.items()})  # its limit
        return run.info.run_id

    def log(self, step: int, values: dict[str, float]) -> None:
        self.mlflow.log_metrics(values, step=step)

    def end(self) -> None:
        self.mlflow.end_run()


TRACKERS: dict[str, Any] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}


def require(package: str) -> Any:
    """Return a tracker's package. Raises ImportError if it is not installed, with the extra that installs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        extra = f"pip install 'keras-vision-transformers[{package}]'"
        raise ImportError(f"--track={package} needs the package {package}: {extra}") from error


def check(names: Sequence[str]) -> None:
    """Import the packages of trackers, before a long start."""
    for name in names:
        if issubclass(TRACKERS[name], _Remote):
            require(name)
