"""Feed-forward block of the transformer."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers import kernels
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.dense import Dense
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.formulas import gelu, gelu_tanh
from keras_vit.layers.types import Shape


@keras.saving.register_keras_serializable(package="keras_vit")
def quick_gelu(x: Any) -> Any:
    """GELU approximated as x * sigmoid(1.702 x)."""
    return x * keras.ops.sigmoid(1.702 * x)


_KERNELS = {"gelu_tanh": kernels.gelu_tanh, "gelu": kernels.gelu}
_ACTIVATIONS = {"gelu_tanh": gelu_tanh, "gelu": gelu, "quick_gelu": quick_gelu}


def get_activation(name: str, argument: str = "activation") -> Callable[[Any], Any]:
    """Return the activation function of a name.

    Args:
        name: `"gelu_tanh"`, `"gelu"` (error function), `"quick_gelu"` or any name that `keras.activations.get` knows.

        argument: Name of the argument, for the message.

    Raises:
        ValueError: If the name is unknown.

    Example:
    >>> float(get_activation("relu")(-1.0))
    0.0
    """
    if name in _ACTIVATIONS:
        return _ACTIVATIONS[name]
    try:
        return keras.activations.get(name)
    except ValueError as error:
        raise ValueError(
            f"`{argument}` must be one of {sorted(_ACTIVATIONS)} or a name of keras.activations. "
            f"Received: {argument}={name!r}.{_checks.nearest(name, [*_ACTIVATIONS, *vars(keras.activations)])}"
        ) from error


@keras.saving.register_keras_serializable(package="keras_vit")
class MlpBlock(CompositeLayer):
    """Dense, activation, dropout, dense, dropout.

    Args:
        mlp_dim: Width of the hidden layer.
        dropout_rate: Dropout after the activation and after the second dense layer.
        activation: Name of the activation, see `get_activation`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `[B, N, D]`; the result has the same shape.
        training: Whether dropout applies.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), equation 3

    Example:
    >>> import numpy as np
    >>> tuple(MlpBlock(mlp_dim=32)(np.ones((2, 5, 8), "float32")).shape)
    (2, 5, 8)
    """

    def __init__(self, mlp_dim: int, dropout_rate: float = 0.0, activation: str = "gelu_tanh", **kwargs: Any):
        super().__init__(**kwargs)
        self.mlp_dim = _checks.positive_int("mlp_dim", mlp_dim)
        self.dropout_rate = _checks.rate("dropout_rate", dropout_rate)
        self.activation = activation
        self._activation = _KERNELS.get(activation) or get_activation(activation)

    def build(self, input_shape: Shape) -> None:
        self.dense_0 = self._dense(self.mlp_dim, "Dense_0")
        self.dense_0.build(input_shape)
        self.dropout_0 = Dropout(self.dropout_rate, dtype=self.dtype_policy, name="Dropout_0")
        self.dense_1 = self._dense(input_shape[-1], "Dense_1")
        self.dense_1.build((*input_shape[:-1], self.mlp_dim))
        self.dropout_1 = Dropout(self.dropout_rate, dtype=self.dtype_policy, name="Dropout_1")
        for dropout in (self.dropout_0, self.dropout_1):
            dropout.build((*input_shape[:-1], None))
        super().build(input_shape)

    def _dense(self, units, name):
        return Dense(
            units,
            kernel_initializer="glorot_uniform",
            bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),
            dtype=self.dtype_policy,
            name=name,
        )

    def call(self, x: Any, training: bool = False) -> Any:
        y = self.dense_0(kernels.as_rows(x, training))  # [B, N, mlp_dim] or [B*N, mlp_dim]
        y = self.dropout_0(self._activation(y), training=training)
        y = self.dropout_1(self.dense_1(y), training=training)
        return ops.reshape(y, ops.shape(x))  # [B, N, D]

    def count(self, tally: Any, tokens: int, width: int) -> None:
        """Add the cost of `tokens` vectors of a width to a `planning.cost.Tally`."""
        tally.dense(tokens, width, self.mlp_dim)
        tally.elementwise(tokens * self.mlp_dim)  # the activation
        tally.dense(tokens, self.mlp_dim, width)
        if self.dropout_rate:
            tally.dropout(tokens * (width + self.mlp_dim))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape
