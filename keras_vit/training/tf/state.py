"""Everything that changes during training, as variables of a `tf.distribute` strategy."""

from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from keras_vit import optim
from keras_vit import recipe as recipes
from keras_vit.training import state as shared
from keras_vit.training import tasks


class TrainState:
    """Weights, optimizer slots and averages of a run. To be created in the strategy's scope.

    Attributes:
        model: The model.
        teacher: The teacher, or None.
        progress: See `keras_vit.training.state.Progress`.
        rule: The update of the weights.
        trained: Weights that change.
        moving: Moving statistics of batch norms.
        slots: The optimizer's variables for each of them.
        averages: The moving average of each of them; empty where the recipe keeps none.
    """

    def __init__(self, model: keras.Model, recipe: recipes.Recipe, teacher: tasks.Teacher | None = None):
        self.model, self.teacher = model, teacher
        self.progress = shared.Progress()
        self.rule = optim.UpdateRule(recipe, model)
        trained = set(self.rule.trained)
        self.trained = [weight for weight in model.trainable_variables if weight.path in trained]
        self.moving = shared.moving_statistics(model)
        self.slots = [
            [self._slot(weight, slot.dtype) for slot in self.rule.slots(weight.path)] for weight in self.trained
        ]
        self.averages = [self._slot(weight, "float32") for weight in self.trained] if recipe.optim.ema else []
        self.begin()

    def begin(self) -> None:
        """Start the moving averages at the current weights."""
        for weight, average in self.averaged():
            average.assign(tf.cast(weight.value, tf.float32))

    def averaged(self) -> list[tuple[keras.Variable, tf.Variable]]:
        """Return (weight, average) of the weights that are evaluated by their averages."""
        return list(zip(self.trained, self.averages, strict=True)) if self.averages else []

    def specs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return shape and dtype of every array of a checkpoint, by its name."""
        specs = {name: (tuple(v.shape), tf.as_dtype(v.dtype).name) for name, v in self.variables().items()}
        return specs | {name: (value.shape, value.dtype.name) for name, value in self.progress.values().items()}

    def values(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (name, array) for a checkpoint."""
        for name, variable in self.variables().items():
            yield name, variable.numpy()
        yield from self.progress.values().items()

    def assign(self, values: dict[str, np.ndarray]) -> None:
        """Set all arrays of a checkpoint."""
        for name, variable in self.variables().items():
            variable.assign(values[name])
        self.progress.assign(values)

    def use_averages(self) -> None:
        """Overwrite the weights with their averages, for the final model. Nothing can be trained then."""
        for weight, average in self.averaged():
            weight.assign(average.numpy())

    def variables(self) -> dict[str, tf.Variable]:
        """Return every variable of the state by its name in a checkpoint."""
        trained = {id(weight) for weight in self.trained}
        fixed = [weight for weight in shared.weights(self.model) if id(weight) not in trained]
        names = shared.checkpoint_names(
            [weight.path for weight in self.trained],
            [weight.path for weight in fixed],
            [[slot.name for slot in self.rule.slots(weight.path)] for weight in self.trained],
            bool(self.averages),
        )
        variables = {
            "weights": [weight.value for weight in self.trained],
            "fixed": [weight.value for weight in fixed],
            "slots": self.slots,
            "averages": self.averages,
        }
        return dict(zip(shared.flat(names), shared.flat(variables), strict=True))

    def _slot(self, weight: keras.Variable, dtype: str) -> tf.Variable:
        """Return a variable of the weight's shape, filled with zeros."""
        return tf.Variable(tf.zeros(weight.shape, dtype), trainable=False, name=weight.path.replace("/", "_"))
