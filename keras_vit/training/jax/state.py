"""The state of a run as arrays on a mesh of devices."""

import jax
import keras
import numpy as np

from keras_vit import recipe as recipes
from keras_vit.training import state
from keras_vit.training.jax.devices import Devices
from keras_vit.training.seeds import seed_states


class TrainState(state.TrainState):
    """As its parent, with weights, slots and averages where `Devices.of_weight` says.

    `step`, `best` and `window` are numbers on the host.

    Args:
        model: the network.
        recipe: of the run.
        devices: of the run.
        values: whether the arrays exist; without, the state only describes them, to compile a step for devices that are
            not there.

    Attributes:
        fixed: weights that do not change.
        devices: of the run.
    """

    def __init__(self, model: keras.Model, recipe: recipes.Recipe, devices: Devices, values: bool = True):
        self.devices, self.values = devices, values
        super().__init__(model, recipe)
        trained = {id(weight) for weight in self.trained}
        self.fixed = [weight for weight in self.weights() if id(weight) not in trained]

    def reset_averages(self) -> None:
        """Puts the present weights on all devices, and starts their averages there."""
        if not self.values:
            return
        for weight in self.weights():
            saved = self._saved(weight)
            saved.assign(saved.numpy())
        for weight, average in self.evaluated_weights():
            average.assign(self._saved(weight).numpy().astype(np.float32))

    def use_averages(self) -> None:
        """Brings all weights together, averaged where they are averaged, for the final model; every process must ask.

        Nothing can be trained afterwards.
        """
        averages = {id(weight): average for weight, average in self.evaluated_weights()}
        whole = [averages.get(id(weight), self._saved(weight)).numpy() for weight in self.weights()]
        for weight, value in zip(self.weights(), whole, strict=True):
            weight.assign(value)

    def arrays(self) -> dict:
        """Returns what a step changes: lists of arrays by name, in the order of `trained`."""
        return {
            "weights": [weight.value for weight in self.trained],
            "slots": [[slot.value for slot in slots] for slots in self.slots],
            "averages": [average.value for average in self.averages],
        }

    def set_arrays(self, arrays: dict) -> None:
        """Keeps what a step has returned."""
        for weight, value in zip(self.trained, arrays["weights"], strict=True):
            weight.assign(value)
        for slots, values in zip(self.slots, arrays["slots"], strict=True):
            for slot, value in zip(slots, values, strict=True):
                slot.value = value
        for average, value in zip(self.averages, arrays["averages"], strict=True):
            average.value = value

    def fixed_arrays(self) -> list[jax.Array]:
        """Returns the weights that do not change."""
        return [weight.value for weight in self.fixed]

    def descriptions(self) -> tuple[dict, list]:
        """Returns shapes, types and places of `arrays()` and `fixed_arrays()`."""

        def of_weight(weight):
            return self._description(weight.shape, weight.dtype)

        changed = {
            "weights": [of_weight(weight) for weight in self.trained],
            "slots": [[slot.description for slot in slots] for slots in self.slots],
            "averages": [average.description for average in self.averages],
        }
        return changed, [of_weight(weight) for weight in self.fixed]

    def evaluated_arrays(self) -> dict:
        """Returns what `pairs` takes for an evaluation: averages in the place of the weights that have one."""
        weights = [average.value for average in self.averages] or [weight.value for weight in self.trained]
        return {"weights": weights, "fixed": self.fixed_arrays()}

    def pairs(self, weights: list, fixed: list) -> list:
        """Returns pairs of (variable, value) for all weights of the model."""
        return [*zip(self.trained, weights, strict=True), *zip(self.fixed, fixed, strict=True)]

    def generators(self) -> list:
        """Returns the states of the random generators."""
        return seed_states(self.model)

    def _description(self, shape, dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jax.numpy.dtype(dtype), sharding=self.devices.of_weight(shape))

    def _slot(self, weight: keras.Variable, dtype: str) -> "Placed":
        return Placed(self.devices, self._description(weight.shape, dtype), self.values)

    def _saved(self, weight: keras.Variable) -> "PlacedWeight":
        return PlacedWeight(self.devices, self._description(weight.shape, weight.dtype), weight)


class Placed:
    """An array on the devices, zero at first, that is read and written as a `tf.Variable`: whole, as numpy.

    Args:
        devices: of the run.
        description: shape, type and place.
        values: whether to make the array.

    Attributes:
        value: the array.
        description: its shape, type and place.
    """

    def __init__(self, devices: Devices, description: jax.ShapeDtypeStruct, values: bool):
        self.devices, self.description, self.value = devices, description, None
        if values:  # zeros, of which each process makes its own part
            shape, sharding = description.shape, description.sharding
            part = sharding.shard_shape(shape)
            self.value = jax.make_array_from_callback(shape, sharding, lambda _: np.zeros(part, description.dtype))

    def numpy(self) -> np.ndarray:
        """Returns all of it; every process must ask."""
        return self.devices.fetch(self.value)

    def assign(self, value: np.ndarray) -> None:
        """Puts a new value on the devices."""
        self.value = self.devices.place(np.asarray(value, self.description.dtype), self.description.sharding)


class PlacedWeight(Placed):
    """The same for a weight of the model."""

    def __init__(self, devices: Devices, description: jax.ShapeDtypeStruct, weight: keras.Variable):
        self.devices, self.description, self.weight = devices, description, weight

    @property
    def value(self):
        return self.weight.value

    @value.setter
    def value(self, value):
        self.weight.assign(value)
