"""One training step of one replica: gradient of its share, sum over replicas, clip, update."""

import functools
from collections.abc import Callable

import keras
import tensorflow as tf
from keras import ops

from keras_vit import optim
from keras_vit import recipe as recipes
from keras_vit.optim.optimizers import apply_direction
from keras_vit.training.seeds import SeedScope, seed_states, seed_values
from keras_vit.training.state import TrainState

METRICS = ("loss", "accuracy", "grad_norm", "learning_rate")
LARGE = 1 << 18  # numbers of a weight that is updated on its own


class TrainStep:
    """The step as a function of (batch, step) to call in each replica; what it changes is in the state.

    The gradient is that of the mean loss over the global batch, whatever the number of replicas and micro-batches:
    each replica divides the loss of its examples by the size of the global batch, and replicas are summed before the
    norm is taken and clipped.

    Args:
        state: of the run; updated in place.
        recipe: of the run.
        inputs: function of (batch, step, replica) to (images, labels); see `keras_vit.training.inputs`.
        global_batch_size: examples per step over all replicas.
        xla: whether to compile the gradient with XLA.
    """

    def __init__(
        self, state: TrainState, recipe: recipes.Recipe, inputs: Callable, global_batch_size: int, xla: bool = False
    ):
        self.state = state
        self.recipe = recipe
        self.inputs = inputs
        self.global_batch_size = global_batch_size
        self.micro_batches = recipe.optim.accumulation_steps
        self.rate = optim.create_schedule(recipe.optim.schedule, recipe.optim.learning_rate, recipe.total_steps)
        self.seed_states = seed_states(state.model)
        multipliers = optim.layer_multipliers(
            [v.path for v in state.model.trainable_variables], recipe.optim.layer_decay
        )
        by_path = dict(zip((v.path for v in state.model.trainable_variables), multipliers, strict=True))
        self.multipliers = [by_path[weight.path] for weight in state.trained]
        mask, decay = recipe.optim.weight_decay_mask, recipe.optim.weight_decay
        self.decays = [decay if optim.is_decayed(weight.path, mask) else 0.0 for weight in state.trained]
        self.gradients = tf.function(self._gradients, jit_compile=True) if xla else self._gradients

    def __call__(self, batch: dict, step: tf.Tensor) -> tf.Tensor:
        """Runs the step in this replica.

        Args:
            batch: this replica's share of the global batch.
            step: number of updates made before, integer scalar.

        Returns:
            `METRICS` of the global batch, float32 `[4]`, the same in every replica.
        """
        context = tf.distribute.get_replica_context()
        images, labels = self.inputs(batch, step, context.replica_id_in_sync_group)
        seeds = seed_values(self.recipe.seed, step, context.replica_id_in_sync_group, len(self.seed_states))
        gradients, sums = self.gradients(images, labels, seeds)
        *gradients, sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [*gradients, sums])

        norm = optim.global_norm(gradients)
        rate = self.rate(step)
        context.merge_call(self._update, args=(gradients, norm, rate, step))
        return tf.concat([sums, [norm, rate]], axis=0)

    def _gradients(self, images, labels, seeds):
        """Returns this replica's gradients, and its part of the mean loss and accuracy, `[2]`."""
        if self.micro_batches == 1:
            return self._micro_gradients(images, labels, seeds)
        size = images.shape[0] // self.micro_batches
        images = tf.reshape(images, [self.micro_batches, size, *images.shape[1:]])  # [m, b / m, h, w, c]
        labels = tf.reshape(labels, [self.micro_batches, size, *labels.shape[1:]])  # [m, b / m, classes]

        def add(index, totals):
            # The same seeds for every micro-batch, as the reference has it.
            gradients, sums = self._micro_gradients(images[index], labels[index], seeds)
            # The graph optimiser would merge these sums with others before them, and where memory is short sum them
            # in temporary variables, which a loop's last test leaves behind: the next loop fails. It does not merge
            # what waits for something else.
            with tf.control_dependencies([sums]):
                return index + 1, [total + part for total, part in zip(totals, [*gradients, sums], strict=True)]

        totals = [tf.zeros(weight.shape, tf.float32) for weight in self.state.trained] + [tf.zeros([2])]
        _, totals = tf.while_loop(
            lambda index, _: index < self.micro_batches,
            add,
            [tf.constant(0), totals],
            parallel_iterations=1,  # one micro-batch in memory at a time
            maximum_iterations=self.micro_batches,
        )
        return totals[:-1], totals[-1]

    def _micro_gradients(self, images, labels, seeds):
        weights = [weight.value for weight in self.state.trained]
        with SeedScope(self.seed_states, seeds), tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            loss, logits = self._loss(images, labels)
            gradients = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        accuracy = self._accuracy(logits, labels)
        return [tf.cast(gradient, tf.float32) for gradient in gradients], tf.stack([loss, accuracy])

    def _loss(self, images, labels):
        """Returns the loss of some examples, as their part of the mean over the global batch, and the logits."""
        logits = self.state.model(images, training=True)
        losses = optim.cross_entropy(logits, labels, self.recipe.loss)  # [b]
        return ops.sum(losses) / self.global_batch_size, logits

    def _accuracy(self, logits, labels):
        return ops.sum(optim.is_correct(logits, labels)) / self.global_batch_size

    def _update(self, strategy, gradients, norm, rate, step):
        """Updates every weight on every device, outside of the single replicas."""
        state = self.state
        averages = state.averages or [None] * len(state.trained)
        last = {}  # bound below: of an argument, a strategy would hand each device a copy
        for index, weight in enumerate(state.trained):
            strategy.extended.update(
                weight.value,
                functools.partial(self._update_weight, last),
                args=(gradients[index], norm, rate, step, state.slots[index], averages[index]),
                kwargs={"multiplier": self.multipliers[index], "decay": self.decays[index]},
                group=False,
            )

    def _update_weight(self, last, weight, gradient, norm, rate, step, slots, average, multiplier, decay):
        # An executor starts whatever can start: it would scale all momentum before the forward pass and keep the
        # result, and clip all gradients before it updates one weight. So the update of a weight waits for the norm,
        # and that of a large one for the last large one on its device: one of them at a time is in memory.
        large = weight.shape.num_elements() >= LARGE
        with tf.control_dependencies([last.get(weight.device, norm) if large else norm]):
            (gradient,) = optim.clip_by_global_norm([gradient], norm, self.recipe.optim.clip_norm)
            new_weight, new_slots, new_average = self._updated(
                weight, gradient, rate, step, slots, average, multiplier, decay
            )
            assignments = [(weight, new_weight), *zip(slots, new_slots, strict=True)]
            assignments += [] if average is None else [(average, new_average)]
            assigned = [variable.assign(value) for variable, value in assignments]
        if large:
            last[weight.device] = tf.group(assigned)

    def _updated(self, weight, gradient, rate, step, slots, average, multiplier, decay):
        """Returns what becomes of a weight, its slots and its average (None stays None)."""
        direction, new_slots = self.state.optimizer.direction(gradient, slots, step)
        new_weight = apply_direction(weight, direction, rate * multiplier, decay)
        new_average = None if average is None else optim.update_average(average, new_weight, self.recipe.optim.ema)
        return new_weight, new_slots, new_average


class EvalStep:
    """What one replica adds to an evaluation, from its share of a batch.

    Uses the moving averages of the weights where the state has them.

    Args:
        state: of the run.
        recipe: of the run.
        inputs: function of a batch to (images, labels).
        confusion: whether to count the confusion of classes, too.
    """

    def __init__(self, state: TrainState, recipe: recipes.Recipe, inputs: Callable, confusion: bool = False):
        self.state = state
        self.recipe = recipe
        self.inputs = inputs
        self.confusion = confusion

    def __call__(self, batch: dict) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Evaluates a batch in which the examples with `mask` 0 do not count.

        Returns:
            Sums `[3]` of loss, correct answers and examples; confusion `[true classes, predicted classes]`, or
            `[0, 0]`; and the logits `[b, classes]`.
        """
        return self.evaluate(batch, [(weight, value.read_value()) for weight, value in self.state.evaluated_weights()])

    def evaluate(self, batch: dict, weights: list) -> tuple:
        """Does so with other values for some of the weights, on any backend.

        Args:
            batch: as in `__call__`.
            weights: pairs of (weight, value).

        Returns:
            As `__call__`.
        """
        images, labels = self.inputs(batch)
        with keras.StatelessScope(weights, initialize_variables=False):
            logits = ops.cast(self.state.model(images, training=False), "float32")
        mask = ops.cast(batch["mask"], "float32")
        losses = optim.cross_entropy(logits, labels, self.recipe.loss)
        counted = [losses * mask, optim.is_correct(logits, labels) * mask, mask]
        confusion = ops.zeros([0, 0], dtype="float32")
        if self.confusion:
            predicted = ops.one_hot(ops.argmax(logits, axis=-1), logits.shape[-1], dtype="float32")  # [b, classes]
            confusion = ops.matmul(ops.transpose(labels * mask[:, None]), predicted)  # [classes, classes]
        return ops.stack([ops.sum(x) for x in counted]), confusion, logits
