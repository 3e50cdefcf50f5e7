"""Layer, group and RMS normalization with float32 statistics and the reference's variable names."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers import kernels
from keras_vit.layers.base import BaseLayer, Shape
from keras_vit.layers.formulas import at_least_float32
from keras_vit.util import checks

__all__ = ["GroupNorm", "LayerNorm", "RMSNorm"]


class _Normalization(BaseLayer):
    """Base class with a scale and a bias for the last axis. Neither is cast to the compute dtype."""

    _has_bias = True

    def __init__(self, epsilon: float = 1e-6, scale_initializer: Any = "ones", **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.epsilon = float(epsilon)
        self.scale_initializer = keras.initializers.get(scale_initializer)

    def build(self, input_shape: Shape) -> None:
        width = input_shape[-1]
        # autocast=False keeps the affine step in float32 under mixed precision.
        self.scale = self.add_weight(name="scale", shape=(width,), initializer=self.scale_initializer, autocast=False)
        if self._has_bias:
            self.bias = self.add_weight(name="bias", shape=(width,), initializer="zeros", autocast=False)
        super().build(input_shape)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNorm(_Normalization):
    """Layer normalization over the last axis.

    Unlike `keras.layers.LayerNormalization`, this layer has the reference's epsilon and variable names, and consists of
    operations that integer TFLite files support.

    Args:
        epsilon: Number added to the variance. The reference uses 1e-6.
        scale_initializer: Initializer of the scale.

    Call arguments:
        x: Tensor `[..., D]`.

    References:
        - [Layer Normalization](https://arxiv.org/abs/1607.06450)

    Example:
    >>> y = LayerNorm()(np.array([[1.0, 3.0]], "float32"))
    >>> np.array(y, "float64").round(3).tolist()
    [[-1.0, 1.0]]
    """

    def call(self, x: Any) -> Any:
        scale, bias = at_least_float32(self.scale), at_least_float32(self.bias)
        return kernels.layer_norm(ops.cast(x, self.compute_dtype), scale, bias, self.epsilon)


@keras.saving.register_keras_serializable(package="keras_vit")
class GroupNorm(_Normalization):
    """Group normalization of `[B, H, W, C]` over space and groups of channels.

    Args:
        groups: Number of groups, which must divide the number of channels.
        epsilon: Number added to the variance: 1e-6 in the hybrids, 1e-5 in BiT.
        scale_initializer: Initializer of the scale. The last norm of a hybrid's residual unit uses zeros.

    Call arguments:
        x: Tensor `[B, H, W, C]`.

    Raises:
        ValueError: If `groups` does not divide the number of channels.

    References:
        - [Group Normalization](https://arxiv.org/abs/1803.08494)

    Example:
    >>> tuple(GroupNorm(groups=2)(np.ones((1, 4, 4, 8), "float32")).shape)
    (1, 4, 4, 8)
    """

    def __init__(self, groups: int = 32, epsilon: float = 1e-6, scale_initializer: Any = "ones", **kwargs: Any):
        super().__init__(epsilon, scale_initializer, **kwargs)
        self.groups = checks.positive_int("groups", groups)

    def build(self, input_shape: Shape) -> None:
        checks.divisible("channels", input_shape[-1], "groups", self.groups)
        super().build(input_shape)

    def call(self, x: Any) -> Any:
        scale, bias = at_least_float32(self.scale), at_least_float32(self.bias)
        return kernels.group_norm(ops.cast(x, self.compute_dtype), scale, bias, self.groups, self.epsilon)


@keras.saving.register_keras_serializable(package="keras_vit")
class RMSNorm(_Normalization):
    """Division by the root mean square of the last axis, and multiplication by a learned scale.

    Args:
        epsilon: Number added to the mean square.
        scale_initializer: Initializer of the scale.

    Call arguments:
        x: Tensor `[..., D]`.

    References:
        - [Root Mean Square Layer Normalization](https://arxiv.org/abs/1910.07467)

    Example:
    >>> y = RMSNorm()(np.array([[1.0, 7.0]], "float32"))
    >>> np.array(y, "float64").round(3).tolist()
    [[0.2, 1.4]]
    """

    _has_bias = False

    def call(self, x: Any) -> Any:
        wide = at_least_float32(ops.cast(x, self.compute_dtype))
        inverse = ops.rsqrt(ops.mean(wide * wide, axis=-1, keepdims=True) + self.epsilon)  # [..., 1]
        return ops.cast(wide * inverse * at_least_float32(self.scale), self.compute_dtype)


NORMS: dict[str, Any] = {"layer": LayerNorm, "rms": RMSNorm}  # by the values of `norm_type`
