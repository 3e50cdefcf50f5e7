"""The TensorFlow backend: compiled programs under a `tf.distribute` strategy. See `keras_vit.training.backend`."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.layers.bit import BiTRoot
from keras_vit.models.representation import representation
from keras_vit.training import device_preprocessing, distribute, teacher
from keras_vit.training.backend import Backend, check_rows
from keras_vit.training.tf.state import TrainState
from keras_vit.training.tf.step import TrainStep, evaluate, run_steps
from keras_vit.util import onednn
from keras_vit.util.progress import Progress


def create_backend(
    recipe: recipes.Recipe, name: str, tpu: str, virtual_devices: int, multi_host: bool
) -> "TensorFlowBackend":
    """Return the backend with the requested strategy; see `keras_vit.training.create.create`."""
    if multi_host:
        raise ValueError("--multi_host is for KERAS_BACKEND=jax. With TensorFlow, set TF_CONFIG on each machine.")
    onednn.advise()
    strategy = distribute.create_strategy(name, tpu, virtual_devices)
    if recipe.deterministic:
        keras.utils.set_random_seed(recipe.seed)
        distribute.make_deterministic(strategy)
    return TensorFlowBackend(strategy)


class TensorFlowBackend(Backend):
    """Devices of a strategy; see `keras_vit.training.backend.Backend`."""

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.num_replicas = strategy.num_replicas_in_sync
        self.worker, self.num_workers = distribute.workers(strategy)
        self.device = distribute.device(strategy)

    def describe(self) -> str:
        return distribute.describe(self.strategy)

    def record(self) -> dict[str, Any]:
        return {**super().record(), "onednn": onednn.is_on()}

    def create_state(self, recipe: recipes.Recipe, task: tasks.Task, channels: int) -> TrainState:
        with Progress("Creating the model"), self.strategy.scope():
            teacher.load(task, channels)
            return TrainState(recipes.build_model(recipe, task.outputs, channels), recipe, task)

    def distribute(self, batches_of_worker: Callable[[int, int], tf.data.Dataset]) -> Iterable[Any]:
        return distribute.distribute_batches(self.strategy, batches_of_worker)

    def compile_steps(self, state: TrainState, recipe: recipes.Recipe) -> Callable:
        max_pool = any(isinstance(layer, (keras.layers.MaxPooling2D, BiTRoot)) for layer in state.model.layers)
        remat = recipe.model.remat not in (None, "none")
        xla = distribute.use_xla(recipe.jit, self.strategy, recipe.deterministic and max_pool, remat)
        inputs = device_preprocessing.training_inputs(state.task)
        return run_steps(self.strategy, TrainStep(state, recipe, inputs, recipe.data.batch_size, xla))

    def compile_evaluation(self, state: TrainState) -> Callable:
        step = tasks.evaluation(state.task, state.model, device_preprocessing.evaluation_inputs(state.task))
        return evaluate(self.strategy, lambda batch: step(state.evaluated(), batch))

    def compile_forward(
        self, state: TrainState, dense: bool = False
    ) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
        strategy = self.strategy
        replicas = len(strategy.experimental_local_results(strategy.run(lambda: tf.constant(0))))
        with strategy.scope():
            model = representation(state.model, dense)

        def of_replica(images):
            with keras.StatelessScope(state.evaluated(), initialize_variables=False):
                features, logits = model(images, training=False)
            return tf.cast(features, tf.float32), tf.cast(logits, tf.float32)

        compiled = tf.function(lambda images: strategy.run(of_replica, args=(images,)), autograph=False)

        def forward(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            check_rows(images, replicas)
            parts = np.split(images, replicas)
            divided = strategy.experimental_distribute_values_from_function(
                lambda context: tf.constant(parts[context.replica_id_in_sync_group % replicas])
            )
            results = (strategy.experimental_local_results(part) for part in compiled(divided))
            features, logits = (np.concatenate([value.numpy() for value in values]) for values in results)
            return features, logits

        return forward

    def first_rows(self, value: Any) -> np.ndarray:
        return self.strategy.experimental_local_results(value)[0].numpy()

    def gather(self, value: Any) -> np.ndarray:
        return self.strategy.gather(value, axis=0).numpy()

    def profile(self, path: str) -> AbstractContextManager:
        return tf.profiler.experimental.Profile(path)

    def mean(self, value: float) -> float:
        if self.num_workers == 1:
            return value
        return float(self.strategy.reduce("MEAN", self.strategy.run(lambda: tf.constant(float(value))), axis=None))

    def wait(self) -> None:
        """Return at once, because each step already waits for all workers."""
