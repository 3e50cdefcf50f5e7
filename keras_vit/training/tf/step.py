"""Training step on TensorFlow: replicas compute the gradients of their shares, sum them, and update the weights."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit import optim, tasks
from keras_vit import recipe as recipes
from keras_vit.models.variables import seed_states
from keras_vit.training.seeds import SeedScope
from keras_vit.training.tf.state import TrainState

LARGE = 1 << 18  # elements; weights of at least this size are updated one at a time


class TrainStep:
    """Training step: a function of (batch, step) that runs in each replica and updates the variables of the state.

    The step uses the gradient of the mean loss over the global batch, independently of the number of replicas and
    micro-batches. Each replica divides the loss of its examples by the size of the global batch. The gradients are
    summed over the replicas before they are clipped. `inputs` maps (batch, step, replica) to the values of the task;
    see `device_preprocessing`.
    """

    def __init__(
        self, state: TrainState, recipe: recipes.Recipe, inputs: Callable, global_batch_size: int, xla: bool = False
    ):
        self.state, self.recipe, self.inputs, self.global_batch_size = state, recipe, inputs, global_batch_size
        self.names = [metric.name for metric in recipe.task.step_metrics]  # in the order of the stacked means
        self.seed_states = seed_states(state.model)
        given = state.task.teacher_model.weights if state.task.teacher_model else []
        self.xla, self.variables = xla, [*state.trained, *state.fixed, *state.moving, *given]
        self.gradients = tf.function(self._gradients, jit_compile=True) if xla else self._gradients

    def __call__(
        self, batch: dict[str, tf.Tensor], step: tf.Tensor, rate: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Run the step in this replica.

        Returns the metrics of the global batch as float32 scalars by name, equal in every replica. `step` is the number
        of completed updates. `rate` is the learning rate, by default the rate of the schedule.
        """
        context = tf.distribute.get_replica_context()
        replica = context.replica_id_in_sync_group
        values = self.inputs(batch, step, replica)
        seeds = seed_values(self.recipe.seed, step, replica, len(self.seed_states))
        weights = []
        if self.xla and context.num_replicas_in_sync > 1:  # otherwise, all replicas would read those of the first one
            weights = [tf.convert_to_tensor(variable.value) for variable in self.variables]
        gradients, moved, means = self.gradients(values, seeds, weights)
        *totals, means = context.all_reduce(tf.distribute.ReduceOp.SUM, [*gradients, *moved, means])
        gradients, moved = totals[: len(gradients)], totals[len(gradients) :]

        norm = optim.global_norm(gradients)
        rate = self.state.rule.rate(step) if rate is None else rate
        context.merge_call(self._update, args=(gradients, moved, norm, rate, step))
        means = dict(zip(self.names, tf.unstack(means), strict=True))
        return {**means, "grad_norm": norm, "learning_rate": rate}

    def _gradients(self, values, seeds, weights):
        """Return this replica's gradients, and its share of the moving statistics and of the mean metrics."""
        micro_batches = self.recipe.optim.accumulation_steps
        if micro_batches == 1:
            return self._micro_gradients(values, seeds, weights)
        size = values[0].shape[0] // micro_batches
        values = [tf.reshape(value, [micro_batches, size, *value.shape[1:]]) for value in values]  # [m, b / m, ...]

        def add(index, totals):
            # The same seeds for every micro-batch, as in the reference.
            gradients, moved, sums = self._micro_gradients([value[index] for value in values], seeds, weights)
            # Without this dependency, the graph optimizer merges these sums with earlier sums. If memory is short, the
            # optimizer also adds temporary variables, which the loop does not free, and the next loop fails.
            with tf.control_dependencies([sums]):
                return index + 1, [total + part for total, part in zip(totals, [*gradients, *moved, sums], strict=True)]

        changed = [*self.state.trained, *self.state.moving]
        totals = [*(tf.zeros(weight.shape, tf.float32) for weight in changed), tf.zeros([len(self.names)])]
        _, totals = tf.while_loop(
            lambda index, _: index < micro_batches,
            add,
            [tf.constant(0), totals],
            parallel_iterations=1,  # one micro-batch in memory at a time
            maximum_iterations=micro_batches,
        )
        count = len(self.state.trained)
        return totals[:count], totals[count:-1], totals[-1]

    def _micro_gradients(self, values, seeds, weights):
        trained = weights[: len(self.state.trained)] or [weight.value for weight in self.state.trained]
        pairs = zip(self.variables, weights, strict=False)  # without `weights`, the model reads the variables
        with SeedScope(self.seed_states, seeds, pairs), tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(trained)
            loss, means, moved = tasks.loss_and_metrics(
                self.state.task, self.state.model, values, self.global_batch_size, self.state.moving
            )
            gradients = tape.gradient(loss, trained, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return (
            [tf.cast(gradient, tf.float32) for gradient in gradients],
            moved,
            tf.stack([means[name] for name in self.names]),
        )

    def _update(self, strategy, gradients, moved, norm, rate, step):
        """Update every weight on every device, in the cross-replica context."""
        state = self.state
        averages = state.averages or [None] * len([*state.trained, *state.moving])
        for statistic, value, average in zip(state.moving, moved, averages[len(state.trained) :], strict=True):
            strategy.extended.update(statistic.value, lambda variable, new: variable.assign(new), (value,), group=False)
            if average is not None:
                strategy.extended.update(average, self._update_average, (value, step), group=False)
        last: dict[str, tf.Operation] = {}  # bound by `partial`, because a strategy copies arguments for each device
        for index, weight in enumerate(state.trained):
            strategy.extended.update(
                weight.value,
                functools.partial(self._update_weight, last, weight.path),
                args=(gradients[index], norm, rate, step, state.slots[index], averages[index]),
                group=False,
            )

    def _update_average(self, average, new, step):
        average.assign(self.state.rule.statistic_average(average, new, step))

    def _update_weight(self, last, path, weight, gradient, norm, rate, step, slots, average):
        # TensorFlow runs operations as soon as their inputs are ready. It would scale all momenta before the forward
        # pass and clip all gradients before the first update, and keep the results in memory. The update of a weight
        # therefore waits for the norm. The update of a large weight waits for the previous large weight on its device,
        # so that the temporary values of only one large weight are in memory.
        large = weight.shape.num_elements() >= LARGE
        with tf.control_dependencies([last.get(weight.device, norm) if large else norm]):
            new_weight, new_slots, new_average = self.state.rule(
                path, weight, gradient, norm, rate, step, slots, average
            )
            assignments = [(weight, new_weight), *zip(slots, new_slots, strict=True)]
            assignments += [] if average is None else [(average, new_average)]
            assigned = [variable.assign(value) for variable, value in assignments]
        if large:
            last[weight.device] = tf.group(assigned)


def run_steps(strategy: tf.distribute.Strategy, step: TrainStep) -> Callable:
    """Return a function that runs several steps on every replica in one compiled loop."""
    # Autograph converts only the loop below. Converting the step would take longer than tracing the step.
    one_step, names = tf.autograph.experimental.do_not_convert(step), [*step.names, "grad_norm", "learning_rate"]

    @tf.function
    def compiled(iterator, first, count, rates):
        history = tf.TensorArray(tf.float32, size=count, element_shape=[len(names)])
        for index in tf.range(count):
            values = strategy.run(one_step, args=(next(iterator), first + tf.cast(index, tf.int64), rates[index]))
            own = [strategy.experimental_local_results(values[name])[0] for name in names]
            history = history.write(index, tf.stack(own))
        return history.stack()

    def run(iterator, first: int, count: int) -> dict[str, np.ndarray]:
        # Pass tensors instead of numbers, so that other steps or another schedule do not retrace the function.
        rates = step.state.rates(first, max(count, step.recipe.steps_per_loop))
        history = compiled(iterator, tf.constant(first, tf.int64), tf.constant(count, tf.int32), rates).numpy()
        return dict(zip(names, history.T, strict=True))

    run.compiled = compiled  # type: ignore[attr-defined]
    return run


def evaluate(strategy: tf.distribute.Strategy, step: Callable) -> Callable:
    """Return a function that runs an evaluation step in every replica and sums the results."""

    @tf.function(autograph=False)
    def compiled(batch):
        sums, tally, predictions = strategy.run(step, args=(batch,))
        sums = {name: strategy.reduce("SUM", value, axis=None) for name, value in sums.items()}
        return sums, strategy.reduce("SUM", tally, axis=None), predictions

    def run(batch) -> tuple[dict[str, float], np.ndarray, Any]:
        sums, tally, predictions = compiled(batch)
        return {name: float(value) for name, value in sums.items()}, tally.numpy(), predictions

    run.compiled = compiled  # type: ignore[attr-defined]
    return run


def seed_values(seed: int, step: Any, replica: Any, count: int) -> tf.Tensor:
    """Return a state for each random generator of the model, int64 `[count, 2]`."""
    base = tf.stack([tf.constant(seed, tf.int32), tf.cast(step, tf.int32)])
    base = tf.random.experimental.stateless_fold_in(base, tf.cast(replica, tf.int32))
    # Philox makes the states independent of the device and of compilation.
    return tf.cast(
        tf.random.stateless_uniform(
            [count, 2], base, minval=0, maxval=2**31 - 1, dtype=tf.int32, alg=tf.random.Algorithm.PHILOX
        ),
        tf.int64,
    )
