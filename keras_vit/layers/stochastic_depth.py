"""Stochastic depth."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.dropout import Dropout

__all__ = ["StochasticDepth"]


@keras.saving.register_keras_serializable(package="keras_vit")
class StochasticDepth(Dropout):
    """Dropout of a residual branch for whole examples.

    Branches that stay are divided by the probability of staying, so that the expected value is unchanged.

    Args:
        rate: Probability in [0, 1) of dropping an example's branch.
        seed: Integer or None.

    Call arguments:
        x: Tensor `[B, ...]`, the branch before it is added.
        training: Whether to drop; outside of training the layer does nothing.

    References:
        - [Deep Networks with Stochastic Depth](https://arxiv.org/abs/1603.09382)

    Example:
    >>> import numpy as np
    >>> branch = np.ones((4, 2), "float32")
    >>> tuple(StochasticDepth(0.1)(branch, training=True).shape)
    (4, 2)
    """

    def call(self, x: Any, training: bool = False) -> Any:
        if not training or self.rate == 0:
            return x
        shape = (ops.shape(x)[0],) + (1,) * (len(x.shape) - 1)
        kept = keras.random.uniform(shape, seed=self.seed_generator, dtype="float32") >= self.rate
        return x * (ops.cast(kept, x.dtype) / ops.cast(1.0 - self.rate, x.dtype))
