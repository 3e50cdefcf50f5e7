"""Randomness inside the network as a pure function of the run's seed, the step and the replica.

Keras layers draw from generators whose state advances with every call, so what they draw depends on everything that
ran before. A `SeedScope` gives each generator a state computed from the step instead and keeps it there: a resumed run
draws what an uninterrupted one would have, and a layer recomputed in the backward pass draws the same again.
"""

import keras
import tensorflow as tf

_STATE = "seed_generator_state"


def seed_states(model: keras.Model) -> list:
    """Returns the state variables of all random generators in a model, in the order of its layers."""
    return [variable for variable in model.non_trainable_variables if variable.path.endswith(_STATE)]


def seed_values(seed: int, step, replica, count: int) -> tf.Tensor:
    """Returns a state for each generator, int64 `[count, 2]`.

    Args:
        seed: of the run.
        step: integer scalar tensor.
        replica: number of this replica among all.
        count: number of generators.
    """
    base = tf.stack([tf.constant(seed, tf.int32), tf.cast(step, tf.int32)])
    base = tf.random.experimental.stateless_fold_in(base, tf.cast(replica, tf.int32))
    # Philox everywhere, so that the drawn states do not depend on the device or on compilation.
    return tf.cast(
        tf.random.stateless_uniform(
            [count, 2], base, minval=0, maxval=2**31 - 1, dtype=tf.int32, alg=tf.random.Algorithm.PHILOX
        ),
        tf.int64,
    )


class SeedScope(keras.StatelessScope):
    """Holds the states of random generators at given values: a generator called again draws the same again.

    Gradients must be taken inside the scope too, because rematerialised layers run again there.

    Args:
        states: from `seed_states`.
        values: from `seed_values`, integers `[count, 2]`.
        weights: pairs of (variable, value) for other variables that take values of their own.
    """

    def __init__(self, states: list, values, weights=()):
        pairs = list(zip(states, keras.ops.unstack(values, num=len(states)), strict=True))
        super().__init__([*weights, *pairs], initialize_variables=False)
        self._fixed = {id(state) for state in states}

    def add_update(self, update):
        """Ignores the advance of a generator that is held."""
        variable, _ = update
        if id(variable) not in self._fixed:
            super().add_update(update)
