"""The interface between the training program and the Keras backend that trains.

`training/tf` and `training/jax` implement it; everything else in this package is the same for both.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from keras_vit.recipe import Recipe
from keras_vit.training.checkpoints import CheckpointStore
from keras_vit.training.state import BaseState
from keras_vit.training.tasks import Task

# Runs (batches, first step, number of steps) and returns the metrics of the steps by name, float32 `[steps]`: those of
# the task, `"grad_norm"` and `"learning_rate"`.
RunSteps = Callable[[Iterator[Any], int, int], dict[str, np.ndarray]]
# Evaluates a batch and returns the sums of the task's metrics and of `"examples"` by name; its tally, such as the
# confusion of classes; and the distributed predictions.
EvaluateBatch = Callable[[Any], tuple[dict[str, float], np.ndarray, Any]]


class Backend(Protocol):
    """Devices of a run, and the programs that are compiled for them.

    Attributes:
        num_replicas: Number of parts into which a global batch is divided.
        num_workers: Number of processes that train together.
        is_chief: Whether this process writes the shared files.
        device: `"cpu"`, `"gpu"` or `"tpu"`.
        weight_parts: Number of devices that each large weight is divided among.
    """

    num_replicas: int
    num_workers: int
    is_chief: bool
    device: str
    weight_parts: int = 1

    def describe(self) -> str:
        """Return one line about the devices."""

    def record(self) -> dict[str, Any]:
        """Return what `config.json` states of the devices."""
        counts = {"replicas": self.num_replicas, "processes": self.num_workers}
        return {"kind": self.device, **counts, "strategy": self.describe()}

    def create_state(self, recipe: Recipe, task: Task, channels: int) -> BaseState:
        """Build the model of a recipe, and everything else that a checkpoint holds."""

    def create_store(self, directory: str, keep: int) -> CheckpointStore:
        """Return the checkpoints of a run, of which the newest `keep` stay."""
        return CheckpointStore(directory, keep, writes=self.is_chief)

    def distribute(self, batches_of_worker: Callable[[int, int], Any]) -> Iterable[Any]:
        """Return global batches on the devices.

        `batches_of_worker` is a function of (shard index, number of shards) to the `tf.data.Dataset` of a process.
        """

    def compile_steps(self, state: Any, recipe: Recipe) -> RunSteps:
        """Return the function that runs training steps."""

    def compile_evaluation(self, state: Any) -> EvaluateBatch:
        """Return the function that evaluates a batch, with averaged weights where the recipe has them."""

    def compile_forward(self, state: Any) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Return the function from images `[B, h, w, c]`, the same in every process, to features `[B, D]` and logits.

        B is a multiple of the replicas of this process.
        """

    def first_rows(self, value: Any) -> np.ndarray:
        """Return the rows of a distributed value that the first device of this process has."""

    def profile(self, path: str) -> AbstractContextManager:
        """Return a context that writes a profile for TensorBoard."""

    def mean(self, value: float) -> float:
        """Return the mean of a number over all processes, the same in each of them; every process must ask."""

    def wait(self) -> None:
        """Wait until every process is here, unless each step waits for all of them anyway."""


def check_rows(images: np.ndarray, replicas: int) -> None:
    """Refuse images that do not divide among the replicas of this process."""
    if len(images) % replicas:
        raise ValueError(f"The images must divide among {replicas} replicas. Received: {len(images)} images.")
