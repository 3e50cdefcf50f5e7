"""Everything that changes during training, as arrays on a mesh of devices."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np

from keras_vit import optim
from keras_vit import recipe as recipes
from keras_vit.training import state as shared
from keras_vit.training import tasks
from keras_vit.training.jax.devices import Devices


class TrainState:
    """Weights, optimizer slots and averages of a run, each sharded as `Devices.of_weight` says.

    Without `values`, it only describes the arrays, to compile a step for devices that this machine lacks.

    Attributes:
        model: The model.
        teacher: The teacher, or None.
        progress: See `keras_vit.training.state.Progress`.
        rule: The update of the weights.
        trained: Weights that change.
        moving: Moving statistics of batch norms.
        fixed: All other weights of the model.
        given: Weights of the teacher, which are in no checkpoint.
        slots: The optimizer's arrays for each weight in `trained`.
        averages: The moving average of each of them; empty where the recipe keeps none.
    """

    def __init__(
        self,
        model: keras.Model,
        recipe: recipes.Recipe,
        devices: Devices,
        values: bool = True,
        teacher: tasks.Teacher | None = None,
    ):
        self.model, self.devices, self.teacher = model, devices, teacher
        self.progress = shared.Progress()
        self.rule = optim.UpdateRule(recipe, model)
        trained = set(self.rule.trained)
        self.moving = shared.moving_statistics(model)
        changed = trained | {weight.path for weight in self.moving}
        self.trained = [weight for weight in model.trainable_variables if weight.path in trained]
        self.fixed = [weight for weight in shared.weights(model) if weight.path not in changed]
        self.given = teacher.weights if teacher else []
        create: Callable[..., Any] = devices.zeros if values else devices.description
        self.slots = [
            [create(weight.shape, slot.dtype) for slot in self.rule.slots(weight.path)] for weight in self.trained
        ]
        self.averages = [create(weight.shape, "float32") for weight in self.trained] if recipe.optim.ema else []
        if values:
            self.begin()

    def begin(self) -> None:
        """Put the current weights on all devices, and start their averages there."""
        for weight in (*self.trained, *self.fixed, *self.moving, *self.given):
            weight.assign(self._place(self.devices.fetch(weight.value)))
        if self.averages:
            self.averages = [self._place(self.devices.fetch(weight.value), np.float32) for weight in self.trained]

    def specs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return shape and dtype of every array of a checkpoint, by its name."""
        arrays = zip(shared.flat(self._names()), shared.flat(self._all_arrays()), strict=True)
        specs = {name: (tuple(array.shape), str(array.dtype)) for name, array in arrays}
        return specs | {name: (value.shape, value.dtype.name) for name, value in self.progress.values().items()}

    def values(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (name, whole array) for a checkpoint. Every process must iterate over all of them."""
        for name, array in zip(shared.flat(self._names()), shared.flat(self._all_arrays()), strict=True):
            yield name, self.devices.fetch(array)
        yield from self.progress.values().items()

    def assign(self, values: dict[str, np.ndarray]) -> None:
        """Put all arrays of a checkpoint on the devices."""
        names = self._names()
        variables = (*self.trained, *self.fixed, *self.moving)
        for weight, name in zip(variables, (*names["weights"], *names["fixed"]), strict=True):
            weight.assign(self._place(values[name]))
        self.slots = [[self._place(values[name]) for name in of_weight] for of_weight in names["slots"]]
        self.averages = [self._place(values[name]) for name in names["averages"]]
        self.progress.assign(values)

    def use_averages(self) -> None:
        """Gather all weights, averaged where they are averaged, for the final model; every process must ask.

        Nothing can be trained afterwards.
        """
        arrays = self.evaluated_arrays()
        for weight, array in self.pairs(**arrays):
            weight.assign(self.devices.fetch(array))

    def arrays(self) -> dict:
        """Return the arrays that a step changes: lists by name, in the order of `trained` and of `moving`."""
        weights, moving = ([weight.value for weight in group] for group in (self.trained, self.moving))
        return {"weights": weights, "slots": self.slots, "averages": self.averages, "moving": moving}

    def set_arrays(self, arrays: dict) -> None:
        """Keep the arrays that a step returned."""
        values = (*arrays["weights"], *arrays["moving"])
        for weight, value in zip((*self.trained, *self.moving), values, strict=True):
            weight.assign(value)
        self.slots, self.averages = arrays["slots"], arrays["averages"]

    def fixed_arrays(self) -> list[jax.Array]:
        """Return the weights that do not change, those of the teacher included."""
        return [weight.value for weight in (*self.fixed, *self.given)]

    def descriptions(self) -> tuple[dict, list]:
        """Return shapes, dtypes and shardings of `arrays()` and `fixed_arrays()`."""

        def describe(array):
            return self.devices.description(array.shape, array.dtype)

        changed = {"weights": self.trained, "slots": self.slots, "averages": self.averages, "moving": self.moving}
        return jax.tree.map(describe, changed), [describe(weight) for weight in (*self.fixed, *self.given)]

    def evaluated_arrays(self) -> dict:
        """Return the arguments of `pairs` for an evaluation: averages in the place of the weights that have one."""
        arrays = self.arrays()
        weights = self.averages or arrays["weights"]
        return {"weights": weights, "fixed": self.fixed_arrays(), "moving": arrays["moving"]}

    def pairs(self, weights: list, fixed: list, moving: list) -> list[tuple]:
        """Return pairs of (variable, value) for all weights of the model and of the teacher."""
        fixed_variables = [*self.fixed, *self.given]
        values = zip((self.trained, fixed_variables, self.moving), (weights, fixed, moving), strict=True)
        return [pair for group, arrays in values for pair in zip(group, arrays, strict=True)]

    def _all_arrays(self) -> dict:
        arrays = self.arrays()
        return {**arrays, "fixed": [weight.value for weight in (*self.fixed, *self.moving)]}

    def _names(self) -> dict:
        return shared.checkpoint_names(
            [weight.path for weight in self.trained],
            [weight.path for weight in (*self.fixed, *self.moving)],
            [[slot.name for slot in self.rule.slots(weight.path)] for weight in self.trained],
            bool(self.averages),
        )

    def _place(self, value, dtype=None) -> jax.Array:
        value = np.asarray(value, dtype)
        return self.devices.place(value, self.devices.of_weight(value.shape))
