"""Clipping, and the update of a weight and its moving average at the end of a training step, on every backend."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.models import variables
from keras_vit.optim.config import Optim
from keras_vit.optim.optimizers import OPTIMIZERS, AdamW, Momentum, Muon, Slot, Slots, apply_direction, create_optimizer
from keras_vit.optim.schedules import create_schedule


def clip_by_global_norm(gradients: Sequence[Any], norm: Any, largest: float) -> Sequence[Any]:
    """Scale gradients whose global `norm` is not below `largest` to this norm. 0 disables clipping.

    References:
        - [On the difficulty of training recurrent neural networks](https://arxiv.org/abs/1211.5063)
    """
    if not largest:
        return list(gradients)
    below = norm < largest
    return [ops.where(below, gradient, gradient / norm * largest) for gradient in gradients]


def update_average(average: Any, weight: Any, momentum: float) -> Any:
    """Return `momentum * average + (1 - momentum) * weight`.

    The average is evaluated and exported instead of the weights. The average starts at the initial weights, without
    bias correction.

    Args:
        average: Average before this step, in float32.
        weight: Weight after this step, with the same shape.
        momentum: Momentum of the average, close to 1. 0.9999 averages over about 10,000 steps.

    References:
        - [Acceleration of stochastic approximation by averaging](https://doi.org/10.1137/0330046) (Polyak and Juditsky)

    Example:
    >>> round(float(update_average(ops.array(1.0), ops.array(0.0), momentum=0.9)), 4)
    0.9
    """
    return momentum * average + (1.0 - momentum) * ops.cast(weight, average.dtype)


class UpdateRule:
    """Gradient clipping, optimizer, learning rate per layer, weight decay and moving average.

    Attributes:
        optimizers: The optimizer of each trainable weight, by path; see `_optimizers`.
        rate: Function that maps a step to the learning rate.
        trained: Paths of the trainable weights of the model.
        ema_momentum: Momentum of the moving average. 0 disables it.
    """

    def __init__(self, optim: Optim, total_steps: int, model: keras.Model):
        self.rate = create_schedule(optim.schedule, optim.learning_rate, total_steps)
        self.trained = [weight.path for weight in model.trainable_weights]
        self.optimizers = _optimizers(optim, model, self.trained)
        self.ema_momentum, self.clip_norm = optim.ema_momentum, optim.clip_norm
        self._multipliers = variables.layer_multipliers(model, optim.layer_decay)
        decayed = variables.decayed(model, optim.weight_decay_mask)
        self._decays = {path: optim.weight_decay if path in decayed else 0.0 for path in self.trained}

    def slots(self, path: str) -> tuple[Slot, ...]:
        """Return the slots that the optimizer keeps for the weight at `path`."""
        return self.optimizers[path].slots

    def __call__(
        self, path: str, weight: Any, gradient: Any, norm: Any, rate: Any, step: Any, slots: Sequence[Any], average: Any
    ) -> tuple[Any, Slots, Any]:
        """Return a weight, its slots and its average after a step. An average of None stays None.

        `gradient` is the float32 gradient over the global batch, and `norm` is the global norm of all gradients. `step`
        is the number of previous updates.
        """
        (gradient,) = clip_by_global_norm([gradient], norm, self.clip_norm)
        direction, new_slots = self.optimizers[path].direction(gradient, slots, step, weight)
        new_weight = apply_direction(weight, direction, rate * self._multipliers[path], self._decays[path])
        new_average = None if average is None else update_average(average, new_weight, self.ema_momentum)
        return new_weight, new_slots, new_average

    def statistic_average(self, average: Any, statistic: Any, step: Any) -> Any:
        """Return the average of a moving statistic after a step.

        A statistic starts at a value that no data have. It is therefore the plain mean of all steps until these are as
        many as the moving average spans.
        """
        step = ops.cast(step, "float32")
        return update_average(average, statistic, ops.minimum(step / (step + 1.0), self.ema_momentum))


def _optimizers(optim: Optim, model: keras.Model, paths: Sequence[str]) -> dict[str, Momentum | AdamW]:
    """Return an optimizer for each path. With `"muon"`, Muon updates the matrices in blocks, AdamW the rest."""
    optimizer = create_optimizer(optim)
    if not isinstance(optimizer, Muon):
        return dict.fromkeys(paths, optimizer)
    matrices, rest = variables.block_matrices(model), OPTIMIZERS["adamw"](optim)
    arguments = (optim.momentum, optim.nesterov, optim.momentum_dtype)
    return {path: Muon(*arguments, matrices[path]) if path in matrices else rest for path in paths}
