"""Dropout and stochastic depth with seeds that rematerialization can repeat."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.base import BaseLayer, Shape
from keras_vit.layers.remat import ReplayableSeedGenerator
from keras_vit.util import checks

__all__ = ["Dropout", "StochasticDepth"]


@keras.saving.register_keras_serializable(package="keras_vit")
class Dropout(BaseLayer):
    """Dropout: during training, random values are set to zero and the others are scaled up.

    Args:
        rate: Probability in [0, 1) of dropping a value.
        seed: Integer or None.

    Call arguments:
        x: Tensor of any shape.
        training: Whether to apply dropout. If False, the layer returns its input.

    References:
        - [Dropout](https://www.jmlr.org/papers/v15/srivastava14a.html)

    Example:
    >>> np.array(Dropout(0.5)(np.ones(3, "float32"))).tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.rate = checks.rate("rate", rate)
        self.seed = seed
        if self.rate > 0:
            self.seed_generator = ReplayableSeedGenerator(seed)

    def call(self, x: Any, training: bool = False) -> Any:
        if not training or self.rate == 0:
            return x
        return keras.random.dropout(x, self.rate, seed=self.seed_generator)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class StochasticDepth(Dropout):
    """Dropout of a whole residual branch, independently for each example.

    The remaining branches are divided by `1 - rate`, so that the expected value is unchanged.

    Args:
        rate: Probability in [0, 1) of dropping an example's branch.
        seed: Integer or None.

    Call arguments:
        x: Tensor `[B, ...]`, the output of the branch before the addition.
        training: Whether to drop branches. If False, the layer returns its input.

    References:
        - [Deep Networks with Stochastic Depth](https://arxiv.org/abs/1603.09382)

    Example:
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
