"""Randomness inside a model as a pure function of the run's seed and the step.

Keras layers draw from generators whose state advances with every call, so what they draw depends on everything that
ran before. A `SeedScope` gives each generator a state computed from the step instead and keeps it there: a resumed run
draws what an uninterrupted one would have, and a layer recomputed in the backward pass draws the same again.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import keras

_STATE = "seed_generator_state"


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """Return the state variables of all random generators in a model, in the order of its layers."""
    return [variable for variable in model.non_trainable_variables if variable.path.endswith(_STATE)]


class SeedScope(keras.StatelessScope):
    """Scope that keeps random generators at given states: a generator called again draws the same again.

    Gradients must be taken inside the scope too, because rematerialized layers run again there. `values` are integers
    `[count, 2]`. `weights` are pairs of (variable, value) for other variables.
    """

    def __init__(self, states: Sequence[keras.Variable], values: Any, weights: Iterable[tuple] = ()):
        pairs = list(zip(states, keras.ops.unstack(values, num=len(states)), strict=True))
        super().__init__([*weights, *pairs], initialize_variables=False)
        self._fixed = {id(state) for state in states}

    def add_update(self, update: tuple) -> None:
        """Ignore the advance of a generator that is held."""
        variable, _ = update
        if id(variable) not in self._fixed:
            super().add_update(update)
