"""Stochastic depth."""

import keras
from keras import ops

from keras_vit import _checks


@keras.saving.register_keras_serializable(package="keras_vit")
class StochasticDepth(keras.layers.Layer):
    """Drops a residual branch for whole examples during training.

    Kept branches are divided by the probability of keeping them, so that the
    expected value is unchanged.

    Args:
        rate: Probability in [0, 1) of dropping an example's branch.
        seed: Integer or None.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `[B, ...]`, the branch before it is added.
        training: Whether to drop; outside of training the layer does nothing.

    References:
        - [Deep Networks with Stochastic Depth](https://arxiv.org/abs/1603.09382)
    """

    def __init__(self, rate, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.rate = _checks.rate("rate", rate)
        self.seed = seed
        if self.rate > 0:
            self.seed_generator = keras.random.SeedGenerator(seed)
        self.supports_jit = True

    def build(self, input_shape):
        super().build(input_shape)

    def call(self, x, training=False):
        if not training or self.rate == 0:
            return x
        shape = (ops.shape(x)[0],) + (1,) * (len(x.shape) - 1)
        kept = keras.random.uniform(shape, seed=self.seed_generator, dtype="float32") >= self.rate
        return x * (ops.cast(kept, x.dtype) / ops.cast(1.0 - self.rate, x.dtype))

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}
