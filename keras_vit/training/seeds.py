"""Random numbers inside a model as a pure function of the run's seed and the step.

Keras layers draw from generators whose state advances with every call, so that the numbers depend on all earlier calls.
A `SeedScope` instead gives each generator a fixed state that is computed from the step. A resumed run then draws the
same numbers as an uninterrupted run, and a layer that is recomputed in the backward pass draws the same numbers again.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import keras


class SeedScope(keras.StatelessScope):
    """Scope that fixes the states of random generators, so that each call of a generator draws the same numbers.

    Compute the gradients inside the scope as well, because rematerialized layers run again in the backward pass.
    `values` are integers `[count, 2]`. `weights` are pairs of (variable, value) for other variables.
    """

    def __init__(self, states: Sequence[keras.Variable], values: Any, weights: Iterable[tuple] = ()):
        pairs = list(zip(states, keras.ops.unstack(values, num=len(states)), strict=True))
        super().__init__([*weights, *pairs], initialize_variables=False)
        self._fixed = {id(state) for state in states}

    def add_update(self, update: tuple) -> None:
        """Ignore updates of the fixed generators."""
        variable, _ = update
        if id(variable) not in self._fixed:
            super().add_update(update)
