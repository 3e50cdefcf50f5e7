"""The JAX backend: programs jitted over a mesh of devices. See `keras_vit.training.backend`."""

import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.models.representation import representation
from keras_vit.runs import checkpoints
from keras_vit.training import device_preprocessing, teacher
from keras_vit.training.backend import Backend, check_rows
from keras_vit.training.jax import sharded_checkpoints
from keras_vit.training.jax.devices import Batches, Devices, ask_for_determinism, create_devices
from keras_vit.training.jax.state import TrainState
from keras_vit.training.jax.step import TrainStep, evaluate, jit_evaluation, run_steps, training_inputs
from keras_vit.util import extras, file_io
from keras_vit.util.progress import Progress

_INSTALL = extras.install("orbax")


def create_backend(recipe: recipes.Recipe, name: str, tpu: str, virtual_devices: int, multi_host: bool) -> "JaxBackend":
    """Return the backend on the requested devices; see `keras_vit.training.create.create`."""
    if tpu != "local":
        raise ValueError(
            f"With KERAS_BACKEND=jax, --tpu must be local, for the TPU of this machine or pod. Received: --tpu={tpu}. "
            "Start the program on each host of the pod, with --multi_host."
        )
    if recipe.deterministic:
        ask_for_determinism()
    devices = create_devices(name, virtual_devices, multi_host)
    if recipe.deterministic:
        keras.utils.set_random_seed(recipe.seed)
        tf.config.experimental.enable_op_determinism()  # for the input pipelines
    return JaxBackend(devices)


class JaxBackend(Backend):
    """Devices of a mesh; see `keras_vit.training.backend.Backend`."""

    def __init__(self, devices: Devices):
        self.devices = devices
        self.num_replicas, self.num_workers = devices.count, devices.processes
        self.worker = jax.process_index()
        self.device, self.weight_parts = devices.kind, devices.fsdp

    def describe(self) -> str:
        return self.devices.describe()

    def create_state(self, recipe: recipes.Recipe, task: tasks.Task, channels: int) -> TrainState:
        with Progress("Creating the model"):
            teacher.load(task, channels)
            return TrainState(recipes.build_model(recipe, task.outputs, channels), recipe, self.devices, task=task)

    def create_store(self, directory: str, keep: int) -> Any:
        found, sharded = checkpoints.saved(directory), checkpoints.has_sharded(directory)
        shared = file_io.shown(directory) == directory  # processes do not share the copy of a bucket
        if not (sharded or (self.num_workers > 1 and shared and not found)):
            return super().create_store(directory, keep)
        if importlib.util.find_spec("orbax"):
            return sharded_checkpoints.ShardedCheckpointStore(directory, keep, self.devices)
        if sharded:
            raise ModuleNotFoundError(
                f"Several hosts wrote the checkpoints in {directory}. To read them: {_INSTALL}", name="orbax"
            )
        logging.info("The first host writes whole checkpoints. To write a part on each host: %s", _INSTALL)
        return super().create_store(directory, keep)

    def distribute(self, batches_of_worker: Callable[[int, int], tf.data.Dataset]) -> Batches:
        return Batches(self.devices, batches_of_worker)

    def compile_steps(self, state: TrainState, recipe: recipes.Recipe) -> Callable:
        return run_steps(TrainStep(state, recipe, training_inputs(state.task), recipe.data.batch_size))

    def compile_evaluation(self, state: TrainState) -> Callable:
        step = tasks.evaluation(state.task, state.model, device_preprocessing.evaluation_inputs(state.task))
        return evaluate(state, jit_evaluation(state, step))

    def compile_forward(
        self, state: TrainState, dense: bool = False
    ) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
        model = representation(state.model, dense)

        def of_arrays(arrays, images):
            with keras.StatelessScope(state.pairs(**arrays), initialize_variables=False):
                features, logits = model(images, training=False)
            return features.astype("float32"), logits.astype("float32")

        compiled = jax.jit(of_arrays, out_shardings=self.devices.whole)

        def forward(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            check_rows(images, self.num_replicas)
            rows = self.devices.place(np.asarray(images, np.float32), self.devices.rows)
            features, logits = compiled(state.evaluated_arrays(), rows)
            return np.asarray(features), np.asarray(logits)

        return forward

    def first_rows(self, value: Any) -> np.ndarray:
        return np.asarray(value.addressable_shards[0].data)

    def gather(self, value: Any) -> np.ndarray:
        return self.devices.fetch(value)

    def profile(self, path: str) -> AbstractContextManager:
        return jax.profiler.trace(path)

    def mean(self, value: float) -> float:
        return self.devices.mean(value)

    def wait(self) -> None:
        self.devices.wait()
