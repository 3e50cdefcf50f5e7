"""Interface between the training program and the Keras backend.

`training/tf` and `training/jax` implement this interface; the rest of this package does not depend on the backend.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from keras_vit.recipe import Recipe
from keras_vit.runs.checkpoints import CheckpointStore
from keras_vit.tasks import Task
from keras_vit.training.state import BaseState
from keras_vit.util import file_io

# Maps (batches, first step, number of steps) to the metrics of the steps by name, float32 `[steps]`. The names are the
# task's metrics, `"grad_norm"` and `"learning_rate"`.
RunSteps = Callable[[Iterator[Any], int, int], dict[str, np.ndarray]]
# Maps a batch to three results: the sums of the task's metrics and of `"examples"` by name; the task's tally, such as
# the confusion matrix; and the distributed predictions.
EvaluateBatch = Callable[[Any], tuple[dict[str, float], np.ndarray, Any]]


class Backend(Protocol):
    """Devices of a run, and the programs compiled for them.

    Attributes:
        num_replicas: Number of replicas that share a global batch.
        num_workers: Number of processes that train together.
        worker: Number of this process, from 0.
        device: `"cpu"`, `"gpu"` or `"tpu"`.
        weight_parts: Number of devices that share each large weight.
    """

    num_replicas: int
    num_workers: int
    worker: int
    device: str
    weight_parts: int = 1

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the shared files."""
        return self.worker == 0

    def describe(self) -> str:
        """Return one line about the devices."""

    def record(self) -> dict[str, Any]:
        """Return the description of the devices for `config.json`."""
        counts = {"replicas": self.num_replicas, "processes": self.num_workers}
        return {"kind": self.device, **counts, "strategy": self.describe()}

    def create_state(self, recipe: Recipe, task: Task, channels: int) -> BaseState:
        """Build the model of a recipe, and the rest of the state that checkpoints contain."""

    def create_store(self, directory: str, keep: int) -> CheckpointStore:
        """Return the checkpoints of a run. Only the newest `keep` are kept.

        A single process with an accelerator writes them while training continues. On a CPU, this would only need more
        memory. Uploads to a bucket include files that training changes, and therefore wait.
        """
        background = self.device != "cpu" and self.num_workers == 1 and file_io.shown(directory) == directory
        return CheckpointStore(directory, keep, writes=self.is_chief, background=background)

    def distribute(self, batches_of_worker: Callable[[int, int], Any]) -> Iterable[Any]:
        """Return global batches on the devices.

        `batches_of_worker` maps (shard index, number of shards) to the `tf.data.Dataset` of a process.
        """

    def compile_steps(self, state: Any, recipe: Recipe) -> RunSteps:
        """Return the function that runs training steps."""

    def compile_evaluation(self, state: Any) -> EvaluateBatch:
        """Return the function that evaluates a batch, with the averaged weights if the recipe averages weights."""

    def compile_forward(self, state: Any, dense: bool = False) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Return a function that maps images `[B, h, w, c]` to features `[B, D]` and logits; see `representation`.

        Every process passes the same images. B must be a multiple of the number of replicas of this process.
        """

    def first_rows(self, value: Any) -> np.ndarray:
        """Return the rows of a distributed value on the first device of this process."""

    def gather(self, value: Any) -> np.ndarray:
        """Return all rows of a distributed value. Every process must call this method."""

    def profile(self, path: str) -> AbstractContextManager:
        """Return a context that writes a profile for TensorBoard."""

    def mean(self, value: float) -> float:
        """Return the mean of a number over all processes.

        Every process must call this method, and gets the same result.
        """

    def wait(self) -> None:
        """Wait until every process has called this method. Return at once if each step synchronizes the processes."""


def check_rows(images: np.ndarray, replicas: int) -> None:
    """Raise a ValueError if the replicas of this process cannot share the images evenly."""
    if len(images) % replicas:
        raise ValueError(f"The number of images must be a multiple of {replicas} replicas. Received: {len(images)}.")
