"""The loop, the evaluation and the forward pass on JAX."""

from collections.abc import Callable

import jax
import keras
import numpy as np

from keras_vit.models.representation import representation
from keras_vit.training import evaluation, loop
from keras_vit.training.jax.devices import Devices
from keras_vit.training.jax.state import TrainState
from keras_vit.training.jax.step import EvalStep, TrainStep

_AHEAD = 2  # steps that wait on the devices for the one that runs


class Loop(loop.Loop):
    """As its parent; `strategy` is `Devices` and `step` a `TrainStep` of this package."""

    def _has_several_workers(self) -> bool:
        return self.strategy.processes > 1

    def _profile(self, path: str):
        return jax.profiler.trace(path)

    def _steps_function(self, step: TrainStep) -> Callable:
        """Returns the function that runs a number of steps and returns `METRICS` of each, `[count, 4]`."""

        def run_steps(iterator, first, count, stop):
            arrays, fixed, history = self.state.arrays(), self.state.fixed_arrays(), []
            try:
                for index in range(first, first + count):
                    arrays, metrics = step.compiled(arrays, fixed, next(iterator), np.int32(index))
                    history.append(metrics)
                    if len(history) > _AHEAD:  # not more, so that batches do not pile up
                        history[-1 - _AHEAD].block_until_ready()
            finally:  # what was given to a step is gone
                self.state.set_arrays(arrays)
            return np.asarray(jax.device_get(history)), self.strategy.any(stop)

        return run_steps

    def _call(self, iterator, step: int, count: int, stop: bool) -> tuple[np.ndarray, bool]:
        return self.run_steps(iterator, step, count, stop)


class Evaluation(evaluation.Evaluation):
    """As its parent; `strategy` is `Devices`."""

    step_type = EvalStep

    def _function(self, step: EvalStep) -> Callable:
        places = (self.strategy.whole, self.strategy.whole, self.strategy.rows)
        self.compiled = jax.jit(step.__call__, out_shardings=places)

        def evaluate_batch(batch):
            sums, confusion, logits = self.compiled(step.state.evaluated_arrays(), batch)
            return sums, confusion, self._of_first_replica(logits)

        return evaluate_batch

    def _of_first_replica(self, value) -> np.ndarray:
        return np.asarray(value.addressable_shards[0].data)


class Forward:
    """The present network of a run as a function of arrays; see `keras_vit.training.forward.Forward`.

    Args:
        state: of the run.
        devices: of the run.
    """

    def __init__(self, state: TrainState, devices: Devices):
        self.state, self.devices = state, devices
        network = representation(state.model)

        def forward(arrays, images):
            with keras.StatelessScope(state.pairs(**arrays), initialize_variables=False):
                features, scores = network(images, training=False)
            return features.astype("float32"), scores.astype("float32")

        self.compiled = jax.jit(forward, out_shardings=devices.whole)

    def __call__(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns features `[B, D]` and scores `[B, classes]`.

        Args:
            images: float32 `[B, height, width, channels]`, in the range of the model, the same in every process; B is a
                multiple of the devices.
        """
        count = self.devices.num_replicas_in_sync
        if len(images) % count:
            raise ValueError(f"The images must divide among {count} devices. Received: {len(images)} images.")
        rows = self.devices.place(np.asarray(images, np.float32), self.devices.rows)
        features, scores = self.compiled(self.state.evaluated_arrays(), rows)
        return np.asarray(features), np.asarray(scores)

    def features(self, images: np.ndarray) -> np.ndarray:
        """Returns what the head sees, `[B, D]`."""
        return self(images)[0]

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Returns the scores `[B, classes]`."""
        return self(images)[1]
