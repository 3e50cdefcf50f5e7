"""One training step of all devices, as a function of the whole state and the global batch."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax.sharding import NamedSharding, PartitionSpec

from keras_vit import distribute, optim
from keras_vit import recipe as recipes
from keras_vit.training import inputs, network, step
from keras_vit.training.jax.devices import AXIS, Devices
from keras_vit.training.jax.state import TrainState
from keras_vit.training.seeds import SeedScope

_KEYS = "threefry2x32"  # the kind whose keys are two numbers, as the states of Keras' generators


def seed_values(seed: int, step, count: int) -> jax.Array:
    """Returns a state for each random generator of the model, uint32 `[count, 2]`.

    A generator draws for the global batch, whatever the number of devices.

    Args:
        seed: of the run.
        step: integer scalar.
        count: number of generators.
    """
    key = jax.random.fold_in(jax.random.key(seed, impl=_KEYS), step)
    return jax.random.key_data(jax.random.split(key, count)) if count else jnp.zeros([0, 2], jnp.uint32)


def mix_center(seed: int, step) -> jax.Array:
    """Returns where CutMix cuts in a step, float32 `[2]` in [0, 1)."""
    return jax.random.uniform(jax.random.fold_in(jax.random.key(seed, impl=_KEYS), step), [2])


def training_inputs(recipe: recipes.Recipe, classes: int) -> Callable:
    """Returns a function of (batch, step, replica) to (images, labels), as `keras_vit.training.inputs` has it."""
    return inputs.training_inputs(recipe, classes, mix_center)


class TrainStep(step.TrainStep):
    """The step as a function of (state, weights that do not change, batch, step) that returns (state, `METRICS`).

    It is written for the global batch. The arrays come divided as `Devices` says and the results are asked for in the
    same way; from that the compiler derives which device computes what, and inserts the communication.

    Args:
        state: of the run; only describes the arrays, which are arguments.
        recipe: of the run.
        inputs: function of (batch, step, replica) to (images, labels); see `training_inputs`.
        global_batch_size: examples per step.

    Attributes:
        compiled: the function, compiled at its first call. The arrays of the state are given up to it.
    """

    def __init__(self, state: TrainState, recipe: recipes.Recipe, inputs: Callable, global_batch_size: int):
        super().__init__(state, recipe, inputs, global_batch_size)
        self.devices = state.devices
        self.places = jax.tree.map(lambda described: described.sharding, state.descriptions()[0])
        self.compiled = jax.jit(self.__call__, donate_argnums=0, out_shardings=(self.places, self.devices.whole))

    def __call__(self, arrays: dict, fixed: list, batch: dict, step) -> tuple[dict, jax.Array]:
        """Runs the step.

        Args:
            arrays: see `TrainState.arrays`.
            fixed: see `TrainState.fixed_arrays`.
            batch: the global batch.
            step: number of updates made before, integer scalar.

        Returns:
            The new arrays, and `METRICS`, float32 `[4]`.
        """
        images, labels = self.inputs(batch, step, 0)
        seeds = seed_values(self.recipe.seed, step, len(self.seed_states))
        gradients, sums = self._gradients(arrays["weights"], fixed, images, labels, seeds)
        norm = optim.global_norm(gradients)
        gradients = optim.clip_by_global_norm(gradients, norm, self.recipe.optim.clip_norm)
        rate = self.rate(step)
        averages = arrays["averages"] or [None] * len(gradients)
        updated = [
            self._updated(weight, gradient, rate, step, slots, average, multiplier, decay)
            for weight, gradient, slots, average, multiplier, decay in zip(
                arrays["weights"], gradients, arrays["slots"], averages, self.multipliers, self.decays, strict=True
            )
        ]
        weights, slots, averages = zip(*updated, strict=True)
        new = {
            "weights": list(weights),
            "slots": [list(values) for values in slots],
            "averages": [average for average in averages if average is not None],
        }
        return new, jnp.concatenate([sums, jnp.stack([norm, rate])])

    def _gradients(self, weights: list, fixed: list, images, labels, seeds):
        """Returns the gradients, divided as the weights are, and the mean loss and accuracy, `[2]`."""
        if self.micro_batches == 1:
            return self._micro_gradients(weights, fixed, images, labels, seeds)

        def add(totals, rows):
            # The same seeds for every micro-batch, as the reference has it.
            parts = self._micro_gradients(weights, fixed, *rows, seeds)
            return jax.tree.map(jnp.add, totals, parts), None

        zeros = [jnp.zeros(weight.shape, jnp.float32) for weight in weights]
        rows = self._micro_batches(images), self._micro_batches(labels)
        totals, _ = jax.lax.scan(add, (self._divided(zeros), jnp.zeros([2])), rows)
        return totals

    def _micro_gradients(self, weights: list, fixed: list, images, labels, seeds):
        images, labels = (self._by_rows(value) for value in (images, labels))

        def loss_and_accuracy(weights):
            with SeedScope(self.seed_states, seeds, self.state.pairs(weights, fixed)):
                loss, logits = self._loss(images, labels)
            return loss, self._accuracy(logits, labels)

        (loss, accuracy), gradients = jax.value_and_grad(loss_and_accuracy, has_aux=True)(weights)
        gradients = [gradient.astype(jnp.float32) for gradient in gradients]
        return self._divided(gradients), jnp.stack([loss, accuracy])

    def _micro_batches(self, values):
        """`[b, ...]` to `[m, b / m, ...]`: every m-th row, so that each micro-batch has rows of every device."""
        values = values.reshape([-1, self.micro_batches, *values.shape[1:]])
        sharding = NamedSharding(self.devices.mesh, PartitionSpec(None, AXIS))
        return jax.lax.with_sharding_constraint(jnp.moveaxis(values, 1, 0), sharding)

    def _by_rows(self, values):
        return jax.lax.with_sharding_constraint(values, self.devices.rows)

    def _divided(self, gradients: list) -> list:
        """Sums gradients over the devices, each keeping the part of the weight that it has."""
        return jax.lax.with_sharding_constraint(gradients, self.places["weights"])


class EvalStep(step.EvalStep):
    """What the global batch adds to an evaluation, as a function of (`TrainState.evaluated_arrays()`, batch)."""

    def __call__(self, arrays: dict, batch: dict) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Evaluates a batch in which the examples with `mask` 0 do not count; see the parent."""
        return self.evaluate(batch, self.state.pairs(**arrays))


def program(
    recipe: recipes.Recipe, classes: int, batch: dict[str, tf.TensorSpec], devices: Devices
) -> tuple[Callable, tuple]:
    """Returns the training step of a recipe for devices that need not be there, to be compiled but not run.

    `step.lower(*arguments).compile()` is the program that `train.main` would run on these devices. No array is made.

    Args:
        recipe: of the run.
        classes: number of classes.
        batch: shape and type of each entry of a batch, without the first axis or with any size of it.
        devices: for example of `jax.experimental.topologies.get_topology_desc(...).devices`.

    Returns:
        (the jitted step, its arguments as `jax.ShapeDtypeStruct`s that say where each lives).

    Raises:
        ValueError: if the batch cannot be divided among the devices.
    """
    distribute.check_batch_size("data.batch_size", recipe.data.batch_size, devices, recipe.optim.accumulation_steps)
    model = network.describe_network(recipe, classes, batch["image"].shape[-1])
    state = TrainState(model, recipe, devices, values=False)
    size = recipe.data.batch_size
    train_step = TrainStep(state, recipe, training_inputs(recipe, classes), size)
    rows = {
        name: jax.ShapeDtypeStruct([size, *spec.shape[1:]], spec.dtype.as_numpy_dtype, sharding=devices.rows)
        for name, spec in batch.items()
    }
    step = jax.ShapeDtypeStruct([], np.int32, sharding=devices.whole)
    return train_step.compiled, (*state.descriptions(), rows, step)
