"""State of a training run: weights, optimizer slots and averages by name, and the progress."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from keras_vit import optim
from keras_vit import recipe as recipes
from keras_vit.models.variables import moving_statistics, weights

_GROUP = 64  # steps; a multiple of the numbers that a CPU computes at once


@dataclasses.dataclass
class Progress:
    """Part of the state that is on the host.

    The data and all random numbers are functions of the seed and the step. The step therefore also determines the
    position in the data and the state of every random generator.
    """

    window: np.ndarray  # sums of the task's metrics since the last log line, and the number of steps in the sums
    step: int = 0  # number of completed updates
    best: float = -np.inf  # best validation score so far as a number to maximize, such as the accuracy

    def values(self) -> dict[str, np.ndarray]:
        """Return step, best score and window as arrays, for a checkpoint."""
        return {
            "step": np.asarray(self.step, np.int64),
            "best": np.asarray(self.best, np.float32),
            "window": self.window,
        }

    def assign(self, values: dict[str, np.ndarray]) -> None:
        """Set step, best score and window from the arrays of a checkpoint."""
        self.step, self.best = int(values["step"]), float(values["best"])
        self.window = np.array(values["window"], np.float32)


class BaseState:
    """Everything that changes during training. The subclasses in `tf` and `jax` keep the arrays on their devices.

    `create` maps (shape, dtype) to an array of zeros on the devices.

    Attributes:
        model: The model.
        task: The task.
        progress: Step, best score and sums of the metrics, on the host.
        rule: The update rule of the weights.
        trained: Weights that the optimizer changes.
        moving: Moving statistics of batch norms.
        fixed: All other weights of the model.
        slots: The optimizer's arrays for each weight in `trained`.
        averaged_variables: `trained` and `moving`, because moving statistics belong to the weights of the same steps;
            empty if the recipe does not average weights.
        averages: The moving average of each variable in `averaged_variables`.
    """

    def __init__(self, model: keras.Model, recipe: recipes.Recipe, task: Any, create: Callable):
        self.model, self.task = model, task
        self.progress = Progress(window=np.zeros(len(recipe.task.step_metrics) + 1, np.float32))
        self.rule = optim.UpdateRule(recipe.optim, recipe.total_steps, model)
        self.trained = model.trainable_weights
        self.moving = moving_statistics(model)
        changed = {id(weight) for weight in (*self.trained, *self.moving)}
        self.fixed = [weight for weight in weights(model) if id(weight) not in changed]
        self.slots = [
            [create(weight.shape, slot.dtype) for slot in self.rule.slots(weight.path)] for weight in self.trained
        ]
        self.averaged_variables = [*self.trained, *self.moving] if recipe.optim.ema_momentum else []
        self.averages = [create(weight.shape, "float32") for weight in self.averaged_variables]

    def fetch(self, array: Any) -> Any:
        """Return an array on the devices in a form that NumPy can read. Every process must call this method."""
        raise NotImplementedError

    def begin(self) -> None:
        """Start from the current weights of the model. Call this after loading initial weights into it."""
        raise NotImplementedError

    def assign(self, values: dict[str, np.ndarray]) -> None:
        """Set all arrays and the progress from a checkpoint."""
        raise NotImplementedError

    def use_averages(self) -> None:
        """Replace the weights with their averages, for the final model. Training cannot continue afterwards."""
        raise NotImplementedError

    def use_schedule(self, recipe: recipes.Recipe) -> None:
        """Use the learning rates of a recipe with another number of steps."""
        self.rule.rate = optim.create_schedule(recipe.optim.schedule, recipe.optim.learning_rate, recipe.total_steps)

    def rates(self, first: int, count: int) -> Any:
        """Return the learning rates of at least `count` steps from `first` on.

        On a CPU, the last, smaller group of an array may be rounded differently. The array has no such group.
        """
        return self.rule.rate(np.arange(first, first + math.ceil(count / _GROUP) * _GROUP))

    def arrays_by_name(self) -> dict[str, Any]:
        """Return the arrays on the devices, keyed by their names in a checkpoint."""
        variables = [*self.trained, *self.fixed, *self.moving]
        arrays = {f"model/{weight.path}": weight.value for weight in variables}
        if len(arrays) < len(variables):
            raise ValueError("The variables of a model must have different paths, which name them in checkpoints.")
        for names, slots in zip(self.slot_names(), self.slots, strict=True):
            arrays |= dict(zip(names, slots, strict=True))
        return arrays | dict(zip(self.average_names(), self.averages, strict=True))

    def slot_names(self) -> list[list[str]]:
        """Return the checkpoint names of each weight's slots."""
        paths = [weight.path for weight in self.trained]
        return [[f"optimizer/{slot.name}/{path}" for slot in self.rule.slots(path)] for path in paths]

    def average_names(self) -> list[str]:
        """Return the checkpoint names of the averages."""
        return [f"average/{weight.path}" for weight in self.averaged_variables]

    def specs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return the shape and dtype of every array of a checkpoint, by name."""
        arrays = self.arrays_by_name() | self.progress.values()
        return {
            name: (tuple(array.shape), keras.backend.standardize_dtype(array.dtype)) for name, array in arrays.items()
        }

    def values(self, whole: bool = True) -> Iterator[tuple[str, Any]]:
        """Yield (name, array) for a checkpoint. With `whole`, sharded arrays are gathered first.

        Every process must iterate over all arrays.
        """
        for name, array in self.arrays_by_name().items():
            yield name, self.fetch(array) if whole else array
        yield from self.progress.values().items()
