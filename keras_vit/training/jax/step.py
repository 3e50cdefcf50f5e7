"""Training step on all devices, as a function of the whole state and the global batch."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from keras_vit import optim, tasks
from keras_vit import recipe as recipes
from keras_vit.models.variables import seed_states
from keras_vit.training import teacher
from keras_vit.training.jax import scan
from keras_vit.training.jax.devices import Devices
from keras_vit.training.jax.state import TrainState
from keras_vit.training.seeds import SeedScope

if TYPE_CHECKING:
    import tensorflow as tf

_KEYS = "threefry2x32"  # its keys are two numbers, like the states of Keras' generators
_AHEAD = 2  # steps that are queued on the devices after the current step


def seed_values(seed: int, step: Any, count: int) -> jax.Array:
    """Return a state for each random generator of the model, uint32 `[count, 2]`.

    A generator draws for the global batch, so that the numbers do not depend on the number of devices.
    """
    key = jax.random.fold_in(jax.random.key(seed, impl=_KEYS), step)
    return jax.random.key_data(jax.random.split(key, count)) if count else jnp.zeros([0, 2], jnp.uint32)


def mix_center(seed: int, step: Any) -> jax.Array:
    """Draw the center of CutMix's box for a step, float32 `[2]` in [0, 1)."""
    return jax.random.uniform(jax.random.fold_in(jax.random.key(seed, impl=_KEYS), step), [2])


def training_inputs(task: tasks.Task) -> Callable:
    """Return `device_preprocessing.training_inputs` with JAX's random numbers."""
    from keras_vit.training import device_preprocessing  # needs TensorFlow, which the step does not import

    return device_preprocessing.training_inputs(task, mix_center)


class TrainStep:
    """Training step: a function that maps (arrays, fixed weights, batch, step) to (arrays, metrics).

    The step is written for the global batch. `Devices` determines the sharding of its arguments and results. The
    compiler derives the work of each device and the communication from this sharding. `compiled` is the jitted
    function. It is compiled at its first call, and the caller donates the arrays of the state to it. `inputs` maps
    (batch, step, replica) to the values of the task; see `training_inputs`.
    """

    def __init__(self, state: TrainState, recipe: recipes.Recipe, inputs: Callable, global_batch_size: int):
        self.state, self.recipe, self.inputs, self.global_batch_size = state, recipe, inputs, global_batch_size
        self.devices = state.devices
        self.seed_states, self.chains = seed_states(state.model), scan.chains(state.model)
        self.shardings = jax.tree.map(lambda described: described.sharding, state.descriptions()[0])
        self.compiled = jax.jit(self.__call__, donate_argnums=0, out_shardings=(self.shardings, self.devices.whole))

    def __call__(
        self, arrays: dict, fixed: list, batch: dict, step: Any, rate: Any = None
    ) -> tuple[dict, dict[str, jax.Array]]:
        """Run the step. `step` is the number of completed updates. The metrics are float32 scalars by name.

        `rate` is the learning rate, by default the rate of the schedule.
        """
        rule = self.state.rule
        values = self.inputs(batch, step, 0)
        seeds = seed_values(self.recipe.seed, step, len(self.seed_states))
        gradients, moved, means = self._gradients(arrays["weights"], fixed, arrays["moving"], values, seeds)
        norm = optim.global_norm(gradients)
        rate = rule.rate(step) if rate is None else rate
        count = len(gradients)
        averages = arrays["averages"][:count] or [None] * count
        updated = [
            rule(path, weight, gradient, norm, rate, step, slots, average)
            for path, weight, gradient, slots, average in zip(
                rule.trained, arrays["weights"], gradients, arrays["slots"], averages, strict=True
            )
        ]
        weights, slots, averages = zip(*updated, strict=True)
        statistics = zip(arrays["averages"][count:], moved, strict=bool(arrays["averages"]))
        new = {
            "weights": list(weights),
            "slots": [list(values) for values in slots],
            "averages": [
                *(average for average in averages if average is not None),
                *(rule.statistic_average(average, new, step) for average, new in statistics),
            ],
            "moving": moved,
        }
        return new, {**means, "grad_norm": norm, "learning_rate": rate}

    def _gradients(self, weights: list, fixed: list, moving: list, values, seeds):
        """Return the gradients (sharded like the weights), the moving statistics, and the means of the metrics."""
        if self.recipe.optim.accumulation_steps == 1:
            return self._micro_gradients(weights, fixed, moving, values, seeds)

        def add(totals, rows):
            # The same seeds for every micro-batch, as in the reference.
            parts = self._micro_gradients(weights, fixed, moving, rows, seeds)
            return jax.tree.map(jnp.add, totals, parts), None

        no_metrics = {metric.name: jnp.zeros([]) for metric in self.recipe.task.step_metrics}
        zeros = [jnp.zeros(weight.shape, jnp.float32) for weight in weights]
        rows = [self._micro_batches(value) for value in values]
        no_statistics = [jnp.zeros_like(statistic) for statistic in moving]
        totals, _ = jax.lax.scan(
            add,
            (self._sharded(zeros), no_statistics, no_metrics),
            rows,
        )
        return totals

    def _micro_gradients(self, weights: list, fixed: list, moving: list, values, seeds):
        values = tuple(jax.lax.with_sharding_constraint(value, self.devices.rows) for value in values)

        def loss_and_metrics(weights):
            pairs = self.state.pairs(weights, fixed, moving)
            with SeedScope(self.seed_states, seeds, pairs), scan.scanned(self.chains, self.devices):
                loss, *others = tasks.loss_and_metrics(
                    self.state.task, self.state.model, values, self.global_batch_size, self.state.moving
                )
                return loss, others

        (_, (means, moved)), gradients = jax.value_and_grad(loss_and_metrics, has_aux=True)(weights)
        gradients = [gradient.astype(jnp.float32) for gradient in gradients]
        return self._sharded(gradients), moved, means

    def _micro_batches(self, values):
        """Reshape `[b, ...]` to `[m, b / m, ...]`. A micro-batch is every m-th row, with rows of every device."""
        values = values.reshape([-1, self.recipe.optim.accumulation_steps, *values.shape[1:]])
        sharding = NamedSharding(self.devices.mesh, PartitionSpec(None, self.devices.axes))
        return jax.lax.with_sharding_constraint(jnp.moveaxis(values, 1, 0), sharding)

    def _sharded(self, gradients: list) -> list:
        """Sum gradients over the devices. Each device keeps the part that belongs to its part of the weight."""
        return jax.lax.with_sharding_constraint(gradients, self.shardings["weights"])


def run_steps(step: TrainStep) -> Callable:
    """Return a function that runs a jitted step a number of times."""
    state = step.state

    def run(iterator, first: int, count: int) -> dict[str, np.ndarray]:
        arrays, fixed, history = state.arrays(), state.fixed_arrays(), []
        rates = np.asarray(state.rates(first, count))[:count]  # another schedule compiles nothing
        try:
            for index, rate in enumerate(rates, first):
                arrays, metrics = step.compiled(arrays, fixed, next(iterator), np.int32(index), rate)
                history.append(metrics)
                if len(history) > _AHEAD:  # limits the number of batches on the devices
                    jax.block_until_ready(history[-1 - _AHEAD])
        finally:  # the earlier arrays were donated to a step
            state.set_arrays(arrays)
        steps = jax.device_get(history)
        return {name: np.asarray([step[name] for step in steps]) for name in steps[0]}

    return run


def jit_evaluation(state: TrainState, step: Callable) -> Callable:
    """Jit a `tasks.evaluation` as a function of (`TrainState.evaluated_arrays()`, batch)."""
    devices = state.devices
    return jax.jit(
        lambda arrays, batch: step(state.pairs(**arrays), batch),
        out_shardings=(devices.whole, devices.whole, devices.rows),
    )


def evaluate(state: TrainState, compiled: Callable) -> Callable:
    """Return a function that runs a jitted evaluation."""

    def run(batch: dict[str, jax.Array]) -> tuple[dict[str, float], np.ndarray, jax.Array]:
        sums, tally, predictions = compiled(state.evaluated_arrays(), batch)
        return {name: float(value) for name, value in sums.items()}, np.asarray(tally), predictions

    return run


def program(
    recipe: recipes.Recipe, classes: int, batch: "dict[str, tf.TensorSpec]", devices: Devices
) -> tuple[Callable, tuple]:
    """Return the jitted training step of a recipe, and its arguments, for devices that this machine may lack.

    `step.lower(*arguments).compile()` compiles the program of `keras-vit train` for these devices. The arguments are
    `jax.ShapeDtypeStruct`s with their shardings, so that no array is created. `batch` contains the shape and dtype of
    each entry; the size of the first axis is ignored.
    """
    from keras_vit.training import distribute

    distribute.check_batch_size(
        "data.batch_size", recipe.data.batch_size, devices.count, recipe.optim.accumulation_steps
    )
    channels = batch["image"].shape[-1]
    model, task = recipes.describe_model(recipe, classes, channels), tasks.bind(recipe, outputs=classes)
    teacher.load(task, channels)
    state = TrainState(model, recipe, devices, values=False, task=task)
    size = recipe.data.batch_size
    train_step = TrainStep(state, recipe, training_inputs(task), size)
    rows = {
        name: jax.ShapeDtypeStruct([size, *spec.shape[1:]], spec.dtype.as_numpy_dtype, sharding=devices.rows)
        for name, spec in batch.items()
    }
    step = jax.ShapeDtypeStruct([], np.int32, sharding=devices.whole)
    return train_step.compiled, (*state.descriptions(), rows, step)
