"""State of a run as arrays on a mesh of devices."""

import jax
import keras
import numpy as np

from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.training.jax.devices import Devices
from keras_vit.training.state import BaseState


class TrainState(BaseState):
    """See `BaseState`. `Devices.of_weight` determines the sharding of each array.

    With `values=False`, the state only describes the arrays, to compile a step for devices that this machine lacks.
    `given` contains the weights of the teacher, which checkpoints do not include.
    """

    def __init__(
        self,
        model: keras.Model,
        recipe: recipes.Recipe,
        devices: Devices,
        values: bool = True,
        task: tasks.Task | None = None,
    ):
        super().__init__(model, recipe, task or tasks.bind(recipe), devices.zeros if values else devices.description)
        self.devices = devices
        self.given = self.task.teacher_model.weights if self.task.teacher_model else []
        if values:
            self.begin()

    def begin(self) -> None:
        """Put the current weights on the devices and start their averages."""
        for weight in (*self.trained, *self.fixed, *self.moving, *self.given):
            weight.assign(self._place(self.devices.fetch(weight.value)))
        arrays = (self.devices.fetch(weight.value) for weight in self.averaged_variables)
        self.averages = [self._place(array, np.float32) for array in arrays]

    def fetch(self, array: jax.Array) -> np.ndarray:
        return self.devices.fetch(array)

    def assign(self, values: dict[str, np.ndarray]) -> None:
        for weight in (*self.trained, *self.fixed, *self.moving):
            weight.assign(self._place(values[f"model/{weight.path}"]))
        self.slots = [[self._place(values[name]) for name in names] for names in self.slot_names()]
        self.averages = [self._place(values[name]) for name in self.average_names()]
        self.progress.assign(values)

    def use_averages(self) -> None:
        arrays = self.evaluated_arrays()
        for weight, array in self.pairs(**arrays):
            weight.assign(self.devices.fetch(array))

    def arrays(self) -> dict:
        """Return the arrays that a step changes, as lists by name in the order of `trained` and `moving`."""
        weights, moving = ([weight.value for weight in group] for group in (self.trained, self.moving))
        return {"weights": weights, "slots": self.slots, "averages": self.averages, "moving": moving}

    def set_arrays(self, arrays: dict) -> None:
        """Store the arrays that a step returned."""
        values = (*arrays["weights"], *arrays["moving"])
        for weight, value in zip((*self.trained, *self.moving), values, strict=True):
            weight.assign(value)
        self.slots, self.averages = arrays["slots"], arrays["averages"]

    def fixed_arrays(self) -> list[jax.Array]:
        """Return the weights that do not change, including the weights of the teacher."""
        return [weight.value for weight in (*self.fixed, *self.given)]

    def descriptions(self) -> tuple[dict, list]:
        """Return shapes, dtypes and shardings of `arrays()` and `fixed_arrays()`."""

        def describe(array):
            return self.devices.description(array.shape, array.dtype)

        changed = {"weights": self.trained, "slots": self.slots, "averages": self.averages, "moving": self.moving}
        return jax.tree.map(describe, changed), [describe(weight) for weight in (*self.fixed, *self.given)]

    def evaluated_arrays(self) -> dict:
        """Return the arguments of `pairs` for an evaluation, with averages in place of the averaged weights."""
        arrays = self.arrays()
        evaluated, count = self.averages or [*arrays["weights"], *arrays["moving"]], len(self.trained)
        return {"weights": evaluated[:count], "fixed": self.fixed_arrays(), "moving": evaluated[count:]}

    def pairs(self, weights: list, fixed: list, moving: list) -> list[tuple]:
        """Return pairs of (variable, value) for all weights of the model and of the teacher."""
        fixed_variables = [*self.fixed, *self.given]
        values = zip((self.trained, fixed_variables, self.moving), (weights, fixed, moving), strict=True)
        return [pair for group, arrays in values for pair in zip(group, arrays, strict=True)]

    def _place(self, value, dtype=None) -> jax.Array:
        if isinstance(value, jax.Array):  # its parts are on the devices already
            return value
        value = np.asarray(value, dtype)
        return self.devices.place(value, self.devices.of_weight(value.shape))
