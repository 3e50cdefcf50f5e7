"""Layer and group normalisation with float32 statistics and the reference's variable names.

Keras' own layers take their statistics in the compute dtype (group norm) and
end in a form that integer TFLite conversion refuses (layer norm); these two
take them in float32 under every policy and are written as
`d = x - mean; d * rsqrt(mean(d * d) + epsilon)`.
"""

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers import gradients


class _Normalization(keras.layers.Layer):
    """Scale and bias of the last axis, kept in the variable dtype."""

    def __init__(self, epsilon, scale_initializer="ones", **kwargs):
        super().__init__(**kwargs)
        self.epsilon = float(epsilon)
        self.scale_initializer = keras.initializers.get(scale_initializer)

    def build(self, input_shape):
        width = input_shape[-1]
        # autocast=False: under mixed precision the affine step stays in float32 as well.
        self.scale = self.add_weight(name="scale", shape=(width,), initializer=self.scale_initializer, autocast=False)
        self.bias = self.add_weight(name="bias", shape=(width,), initializer="zeros", autocast=False)
        super().build(input_shape)

    def _float(self, x):
        return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))

    def weights_in_float(self):
        """Returns scale and bias as tensors, of at least float32."""
        return self._float(self.scale), self._float(self.bias)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "epsilon": self.epsilon,
            "scale_initializer": keras.initializers.serialize(self.scale_initializer),
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNorm(_Normalization):
    """Layer normalisation over the last axis.

    Args:
        epsilon: Added to the variance; the reference's value is 1e-6.
        scale_initializer: Initial scale.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `[..., D]`.
        training: Whether a backward pass follows, for which less is then kept; see `gradients.layer_norm`.

    References:
        - [Layer Normalization](https://arxiv.org/abs/1607.06450)
    """

    def __init__(self, epsilon=1e-6, scale_initializer="ones", **kwargs):
        super().__init__(epsilon, scale_initializer, **kwargs)

    def call(self, x, training=False):
        if training:
            return gradients.layer_norm(ops.cast(x, self.compute_dtype), *self.weights_in_float(), self.epsilon)
        x = self._float(x)
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(centred * centred, axis=-1, keepdims=True)  # a square() would fuse into what int16 lacks
        normalised = centred * ops.rsqrt(variance + self.epsilon)
        return ops.cast(normalised * self._float(self.scale) + self._float(self.bias), self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class GroupNorm(_Normalization):
    """Group normalisation of `[B, H, W, C]` over space and groups of channels.

    Args:
        groups: Number of groups; must divide the channels.
        epsilon: Added to the variance: 1e-6 in the hybrids, 1e-5 in BiT.
        scale_initializer: Initial scale (zeros for the last norm of a hybrid's residual unit).
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `[B, H, W, C]`.
        training: Whether a backward pass follows, for which less is then kept; see `gradients.group_norm`.

    References:
        - [Group Normalization](https://arxiv.org/abs/1803.08494)
    """

    def __init__(self, groups=32, epsilon=1e-6, scale_initializer="ones", **kwargs):
        super().__init__(epsilon, scale_initializer, **kwargs)
        self.groups = _checks.positive_int("groups", groups)

    def build(self, input_shape):
        _checks.divisible("channels", input_shape[-1], "groups", self.groups)
        super().build(input_shape)

    def call(self, x, training=False):
        if training:
            weights = self.weights_in_float()
            return gradients.group_norm(ops.cast(x, self.compute_dtype), *weights, self.groups, self.epsilon)
        x = self._float(x)
        mean, variance = gradients.group_moments(x, self.groups)  # [B, 1, 1, C]
        factor = ops.rsqrt(variance + self.epsilon) * self._float(self.scale)
        return ops.cast((x - mean) * factor + self._float(self.bias), self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "groups": self.groups}
