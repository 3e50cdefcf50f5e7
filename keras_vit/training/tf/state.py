"""State of a run as variables of a `tf.distribute` strategy."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.training.state import BaseState


class TrainState(BaseState):
    """See `BaseState`.

    Create the state in the scope of the strategy. `zeros` creates the initial slots and averages.
    """

    def __init__(
        self,
        model: keras.Model,
        recipe: recipes.Recipe,
        task: tasks.Task | None = None,
        zeros: Callable[[tuple[int, ...], str], tf.Tensor] = tf.zeros,
    ):
        super().__init__(
            model,
            recipe,
            task or tasks.bind(recipe),
            lambda shape, dtype: tf.Variable(zeros(tuple(shape), dtype), False),
        )
        self.begin()

    def begin(self) -> None:
        for weight, average in self.averaged():
            average.assign(tf.cast(weight.value, tf.float32))

    def averaged(self) -> list[tuple[keras.Variable, tf.Variable]]:
        """Return pairs of (weight, average) for all averaged weights."""
        return list(zip(self.averaged_variables, self.averages, strict=True))

    def evaluated(self) -> list[tuple[keras.Variable, tf.Tensor]]:
        """Return pairs of (weight, value of its average) in a replica, for all averaged weights."""
        return [(weight, average.read_value()) for weight, average in self.averaged()]

    def fetch(self, array: tf.Variable) -> tf.Tensor:
        return array.read_value()  # shares the memory of the variable, unlike `numpy()`

    def assign(self, values: dict[str, np.ndarray]) -> None:
        for name, variable in self.arrays_by_name().items():
            variable.assign(values[name])
        self.progress.assign(values)

    def use_averages(self) -> None:
        for weight, average in self.averaged():
            weight.assign(average.numpy())
