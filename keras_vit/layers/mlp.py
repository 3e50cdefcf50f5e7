"""Feed-forward blocks of the transformer."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.layers import kernels
from keras_vit.layers.base import CompositeLayer, Shape
from keras_vit.layers.dense import Dense
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.formulas import gelu, gelu_tanh
from keras_vit.util import checks

__all__ = ["MlpBlock", "SwiGLU", "get_activation"]


@keras.saving.register_keras_serializable(package="keras_vit")
def quick_gelu(x: Any) -> Any:
    """Approximate GELU by `x * sigmoid(1.702 x)`."""
    return x * keras.ops.sigmoid(1.702 * x)


_KERNELS = {"gelu_tanh": kernels.gelu_tanh, "gelu": kernels.gelu}
_ACTIVATIONS = {"gelu_tanh": gelu_tanh, "gelu": gelu, "quick_gelu": quick_gelu}


def get_activation(name: str, argument: str = "activation") -> Callable[[Any], Any]:
    """Return an activation function by name.

    Args:
        name: `"gelu_tanh"`, `"gelu"` (exact, with the error function), `"quick_gelu"`, or a name that
            `keras.activations.get` accepts.
        argument: Name of the caller's argument for the error message.

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
            f"Received: {argument}={name!r}.{checks.nearest(name, [*_ACTIVATIONS, *vars(keras.activations)])}"
        ) from error


class _Mlp(CompositeLayer):
    """Base class of feed-forward blocks, whose dense layers are initialized as in the reference."""

    def __init__(self, mlp_dim: int, dropout_rate: float = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.mlp_dim = checks.positive_int("mlp_dim", mlp_dim)
        self.dropout_rate = checks.rate("dropout_rate", dropout_rate)

    def _dense(self, name, inputs, units):
        dense = Dense(
            units,
            kernel_initializer="glorot_uniform",
            bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),
            dtype=self.dtype_policy,
            name=name,
        )
        dense.build((None, None, inputs))
        return dense

    def _dropout(self, name):
        dropout = Dropout(self.dropout_rate, dtype=self.dtype_policy, name=name)
        dropout.build(None)
        return dropout

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class MlpBlock(_Mlp):
    """Feed-forward block: dense, activation, dropout, dense, dropout.

    Args:
        mlp_dim: Width of the hidden layer.
        dropout_rate: Rate of the dropout after the activation and after the second dense layer.
        activation: Name of the activation; see `get_activation`.

    Call arguments:
        x: Tensor `[B, N, D]`; the result has the same shape.
        training: Whether dropout applies.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), equation 3

    Example:
    >>> tuple(MlpBlock(mlp_dim=32)(np.ones((2, 5, 8), "float32")).shape)
    (2, 5, 8)
    """

    def __init__(self, mlp_dim: int, dropout_rate: float = 0.0, activation: str = "gelu_tanh", **kwargs: Any):
        super().__init__(mlp_dim, dropout_rate, **kwargs)
        self.activation = activation
        self._activation = get_activation(activation)

    def build(self, input_shape: Shape) -> None:
        self.dense_0 = self._dense("Dense_0", input_shape[-1], self.mlp_dim)
        self.dropout_0 = self._dropout("Dropout_0")
        self.dense_1 = self._dense("Dense_1", self.mlp_dim, input_shape[-1])
        self.dropout_1 = self._dropout("Dropout_1")
        super().build(input_shape)

    def call(self, x: Any, training: bool = False) -> Any:
        y = self.dense_0(kernels.as_rows(x, training))  # [B, N, mlp_dim] or [B*N, mlp_dim]
        z = None if self.dropout_rate else kernels.feed_forward(self.activation, (y,), self.dense_1, training)
        if z is None:
            y = self.dropout_0(self._activate(y, training), training=training)
            z = self.dense_1(kernels.as_sequence(y, x))
        return ops.reshape(self.dropout_1(z, training=training), ops.shape(x))  # [B, N, D]

    def _activate(self, y, training):
        kernel = _KERNELS.get(self.activation)
        return self._activation(y) if kernel is None else kernel(y, training)


@keras.saving.register_keras_serializable(package="keras_vit")
class SwiGLU(_Mlp):
    """Gated feed-forward block: `down(silu(gate(x)) * up(x))`.

    Args:
        mlp_dim: Width of the outputs of `gate` and `up`.
        dropout_rate: Rate of the dropout after the product and after the last dense layer.

    Call arguments:
        x: Tensor `[B, N, D]`; the result has the same shape.
        training: Whether dropout applies.

    References:
        - [GLU Variants Improve Transformer](https://arxiv.org/abs/2002.05202)

    Example:
    >>> tuple(SwiGLU(mlp_dim=32)(np.ones((2, 5, 8), "float32")).shape)
    (2, 5, 8)
    """

    def build(self, input_shape: Shape) -> None:
        self.gate = self._dense("gate", input_shape[-1], self.mlp_dim)
        self.up = self._dense("up", input_shape[-1], self.mlp_dim)
        self.dropout_0 = self._dropout("Dropout_0")
        self.down = self._dense("down", self.mlp_dim, input_shape[-1])
        self.dropout_1 = self._dropout("Dropout_1")
        super().build(input_shape)

    def call(self, x: Any, training: bool = False) -> Any:
        gate, up = self.gate(x), self.up(x)  # [B, N, mlp_dim]
        y = None if self.dropout_rate else kernels.feed_forward("swiglu", (gate, up), self.down, training)
        if y is None:
            y = self.down(self.dropout_0(kernels.swiglu(gate, up), training=training))  # [B, N, D]
        return self.dropout_1(y, training=training)
