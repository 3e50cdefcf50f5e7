"""Dropout whose draw can be repeated, as recomputing a block's activations needs."""

import contextlib

import keras

from keras_vit import _checks


class HoldableSeedGenerator(keras.random.SeedGenerator):
    """A seed generator that can be held at one seed while a computation runs more than once."""

    _held = None

    def next(self, ordered=True):
        """Returns the held seed, or draws the next one."""
        return super().next(ordered) if self._held is None else self._held


@contextlib.contextmanager
def hold(generators, seeds):
    """Makes each of `generators` return its entry of `seeds`, however often it is asked."""
    for generator, seed in zip(generators, seeds, strict=True):
        generator._held = seed
    try:
        yield
    finally:
        for generator in generators:
            generator._held = None


@keras.saving.register_keras_serializable(package="keras_vit")
class Dropout(keras.layers.Layer):
    """Sets single values to zero during training and scales the others up.

    Args:
        rate: Probability in [0, 1) of dropping a value.
        seed: Integer or None.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: Tensor of any shape.
        training: Whether to drop; outside of training the layer does nothing.

    References:
        - [Dropout](https://www.jmlr.org/papers/v15/srivastava14a.html)
    """

    def __init__(self, rate, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.rate = _checks.rate("rate", rate)
        self.seed = seed
        if self.rate > 0:
            self.seed_generator = HoldableSeedGenerator(seed)

    def build(self, input_shape):
        super().build(input_shape)

    def call(self, x, training=False):
        if not training or self.rate == 0:
            return x
        return keras.random.dropout(x, self.rate, seed=self.seed_generator)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}
