"""The transformer's feed-forward block."""

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers import gradients
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.dropout import Dropout


@keras.saving.register_keras_serializable(package="keras_vit")
def gelu_tanh(x):
    """GELU in its tanh form, the reference's activation."""
    return keras.activations.gelu(x, approximate=True)


@keras.saving.register_keras_serializable(package="keras_vit")
def gelu(x):
    """GELU in its exact form, with the error function."""
    return keras.activations.gelu(x, approximate=False)


@keras.saving.register_keras_serializable(package="keras_vit")
def quick_gelu(x):
    """GELU approximated as x * sigmoid(1.702 x)."""
    return x * keras.ops.sigmoid(1.702 * x)


_ACTIVATIONS = {"gelu_tanh": gelu_tanh, "gelu": gelu, "quick_gelu": quick_gelu}


def get_activation(name):
    """Returns the activation function of a name.

    Args:
        name: `"gelu_tanh"`, `"gelu"` (error function), `"quick_gelu"` or any name that `keras.activations.get` knows.

    Raises:
        ValueError: If the name is unknown.
    """
    if name in _ACTIVATIONS:
        return _ACTIVATIONS[name]
    try:
        return keras.activations.get(name)
    except ValueError as error:
        raise ValueError(
            f"`activation` must be one of {sorted(_ACTIVATIONS)} or a name of keras.activations. "
            f"Received: activation={name!r}.{_checks.nearest(name, _ACTIVATIONS)}"
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
        norm: A `LayerNorm` that is applied to `x` first, or None. In training it shares the first dense layer's
            backward pass; see `gradients.norm_dense`.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), equation 3
    """

    def __init__(self, mlp_dim, dropout_rate=0.0, activation="gelu_tanh", **kwargs):
        super().__init__(**kwargs)
        self.mlp_dim = _checks.positive_int("mlp_dim", mlp_dim)
        self.dropout_rate = _checks.rate("dropout_rate", dropout_rate)
        self.activation = activation
        self._activation = get_activation(activation)

    def build(self, input_shape):
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
        return keras.layers.Dense(
            units,
            kernel_initializer="glorot_uniform",
            bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),
            dtype=self.dtype_policy,
            name=name,
        )

    def call(self, x, training=False, norm=None):
        shape = ops.shape(x)
        lean = training and self._activation is gelu_tanh
        x = (gradients.gelu_tanh if lean else self._activation)(self._first_dense(x, training, norm))
        x = self.dropout_0(x, training=training)  # [B, N, mlp_dim] or [B N, mlp_dim]
        x = ops.reshape(self.dense_1(x), shape)  # [B, N, D]
        return self.dropout_1(x, training=training)

    def _first_dense(self, x, training, norm):
        dense = self.dense_0
        if training and norm is not None and gradients.is_float(dense.kernel):
            kernel, bias = (ops.cast(weight, x.dtype) for weight in (dense.kernel, dense.bias))
            return gradients.norm_dense(x, *norm.weights_in_float(), kernel, bias, norm.epsilon)
        if norm is not None:
            x = norm(x, training=training)
        if keras.backend.backend() == "tensorflow" and not training:
            # Its graph optimiser fuses product, bias and activation of matrices only. In training there is no such
            # fusion to win, and a TPU, which stores rows of tokens in blocks of 8, would copy to change the shape.
            x = ops.reshape(x, (-1, x.shape[-1]))  # [B N, D]
        return dense(x)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "mlp_dim": self.mlp_dim,
            "dropout_rate": self.dropout_rate,
            "activation": self.activation,
        }
