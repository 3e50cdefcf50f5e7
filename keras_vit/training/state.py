"""Everything that changes during training, as named variables: what a checkpoint holds."""

import keras
import numpy as np
import tensorflow as tf

from keras_vit import optim
from keras_vit import recipe as recipes
from keras_vit.training.seeds import seed_states


class TrainState:
    """Weights, optimiser slots, averages, step and best result of a run. To be made in the strategy's scope.

    The data and all randomness are functions of the seed and the step, so the step is also the position in the data
    and the state of every random generator.

    Args:
        model: the network.
        recipe: of the run.

    Attributes:
        model: the network.
        optimizer: see `keras_vit.optim`.
        trained: its weights that change, `keras.Variable`s.
        slots: for each of them, the optimiser's variables.
        averages: for each of them, the moving average; empty where the recipe keeps none.
        step: number of updates made, int64.
        best: best evaluation result, float32.
        window: sums of loss and accuracy since the last logged line, and their count, float32.
    """

    def __init__(self, model: keras.Model, recipe: recipes.Recipe):
        self.model = model
        self.optimizer = optim.create_optimizer(recipe.optim)
        self.trained = [v for v in model.trainable_variables if optim.is_trained(v.path, recipe.optim.frozen)]
        if not self.trained:
            raise ValueError(f"optim.frozen={recipe.optim.frozen!r} matches every weight: nothing is left to train.")
        self.slots = [[self._slot(weight, slot.dtype) for slot in self.optimizer.slots] for weight in self.trained]
        self.averages = []
        if recipe.optim.ema:
            self.averages = [self._slot(weight, "float32") for weight in self.trained]
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self.best = tf.Variable(-np.inf, dtype=tf.float32, trainable=False, name="best")
        self.window = tf.Variable(np.zeros(3), dtype=tf.float32, trainable=False, name="window")
        self.reset_averages()

    def reset_averages(self) -> None:
        """Starts the moving averages at the present weights; to be called after loading initial weights."""
        for weight, average in self.evaluated_weights():
            average.assign(tf.cast(weight.value, tf.float32))

    def variables(self) -> dict[str, tf.Variable]:
        """Returns every variable of the state by a name that does not change between runs.

        Without the states of random generators: training computes them from the step (`keras_vit.training.seeds`).
        """
        weights = self.weights()
        named = {f"model/{weight.path}": self._saved(weight) for weight in weights}
        for index, weight in enumerate(self.trained):
            for slot, variable in zip(self.optimizer.slots, self.slots[index], strict=True):
                named[f"optimizer/{slot.name}/{weight.path}"] = variable
            if self.averages:
                named[f"average/{weight.path}"] = self.averages[index]
        expected = len(weights) + len(self.trained) * (len(self.optimizer.slots) + bool(self.averages))
        if len(named) != expected:
            raise ValueError("Two variables of the model have the same path, so a checkpoint cannot tell them apart.")
        return {**named, "step": self.step, "best": self.best, "window": self.window}

    def weights(self) -> list[keras.Variable]:
        """Returns all variables of the model but the states of its random generators."""
        generators = {id(variable) for variable in seed_states(self.model)}
        return [variable for variable in self.model.variables if id(variable) not in generators]

    def evaluated_weights(self) -> list:
        """Returns pairs of (weight, average) that evaluation uses instead of the weights; empty without averages."""
        return list(zip(self.trained, self.averages, strict=True)) if self.averages else []

    def use_averages(self) -> None:
        """Overwrites the weights with their averages, for the final model. Nothing can be trained afterwards."""
        for weight, average in self.evaluated_weights():
            weight.assign(average.numpy())

    def _slot(self, weight: keras.Variable, dtype: str) -> tf.Variable:
        """Returns a variable of the weight's shape, filled with zeros."""
        return tf.Variable(tf.zeros(weight.shape, dtype), trainable=False, name=weight.path.replace("/", "_"))

    def _saved(self, weight: keras.Variable) -> tf.Variable:
        """Returns what stands for a weight in a checkpoint."""
        return weight.value
