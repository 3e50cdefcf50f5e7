"""Pre-activation ResNet of BiT: root block, units and stages."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.base import CompositeLayer, Shape
from keras_vit.layers.resnet import Bottleneck, Stage, convolution, strided_shape
from keras_vit.util import checks

__all__ = ["BiTRoot", "BiTStage", "BiTUnit"]


def _pad(x, size, value=0.0):
    """Pad height and width of `[B, H, W, C]` on both sides. TensorFlow's "same" may pad one side only."""
    return ops.pad(x, ((0, 0), (size, size), (size, size), (0, 0)), constant_values=value)


def _padded(shape, size):
    batch, *spatial, channels = shape
    return (batch, *(None if s is None else s + 2 * size for s in spatial), channels)


@keras.saving.register_keras_serializable(package="keras_vit")
class BiTRoot(CompositeLayer):
    """Root of BiT: 7x7 convolution of stride 2, then 3x3 max-pooling of stride 2.

    Args:
        filters: Number of output channels.
        pool_padding: Padding of the feature map before the pooling. The padding matters because no ReLU precedes the
            pooling. `"infinity"` pads with minus infinity, as in big_vision. `"zeros"` pads with zeros, as in
            big_transfer, with which the published weights were trained. `"edge"` repeats the border, which gives the
            same outputs as `"infinity"` and also supports integers.

    References:
        - [Big Transfer](https://arxiv.org/abs/1912.11370)

    Example:
    >>> tuple(BiTRoot(filters=32)(np.ones((1, 32, 32, 3), "float32")).shape)
    (1, 8, 8, 32)
    """

    def __init__(self, filters: int, pool_padding: str = "infinity", **kwargs: Any):
        super().__init__(**kwargs)
        self.filters = checks.positive_int("filters", filters)
        self.pool_padding = checks.choice("pool_padding", pool_padding, ("infinity", "zeros", "edge"))

    def build(self, input_shape: Shape) -> None:
        self.conv_root = convolution("bit", self.filters, 7, 2, dtype=self.dtype_policy, name="conv_root")
        self.conv_root.build(_padded(input_shape, 3))
        super().build(input_shape)

    def call(self, x: Any) -> Any:
        x = self.conv_root(_pad(x, 3))
        if self.pool_padding == "edge":
            x = ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="symmetric")
        else:
            x = _pad(x, 1, float("-inf") if self.pool_padding == "infinity" else 0.0)
        return ops.max_pool(x, 3, strides=2, padding="valid", data_format="channels_last")

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return strided_shape(input_shape, (4, 4), self.filters)


@keras.saving.register_keras_serializable(package="keras_vit")
class BiTUnit(Bottleneck):
    """Pre-activation bottleneck of BiT.

    Args:
        features: Number of inner channels. The output has four times as many.
        strides: Stride of the 3x3 convolution.

    References:
        - [Identity Mappings in Deep Residual Networks](https://arxiv.org/abs/1603.05027)
        - [Big Transfer](https://arxiv.org/abs/1912.11370)

    Example:
    >>> tuple(BiTUnit(features=32, strides=2)(np.ones((1, 8, 8, 64), "float32")).shape)
    (1, 4, 4, 128)
    """

    def build(self, input_shape: Shape) -> None:
        shape = tuple(input_shape)
        self._add_norm("gn1", shape)
        self.needs_projection = self._needs_projection(shape)
        if self.needs_projection:
            self._add_conv("conv_proj", self.features * 4, 1, shape, self.strides)
        shape = self._add_conv("conv1", self.features, 1, shape)
        self._add_norm("gn2", shape)
        shape = self._add_conv("conv2", self.features, 3, _padded(shape, 1), self.strides)
        self._add_norm("gn3", shape)
        self._add_conv("conv3", self.features * 4, 1, shape)
        super().build(input_shape)

    def call(self, x: Any) -> Any:
        y = ops.relu(self.gn1(x))
        shortcut = self.conv_proj(y) if self.needs_projection else x
        y = self.conv1(y)
        y = self.conv2(_pad(ops.relu(self.gn2(y)), 1))
        y = self.conv3(ops.relu(self.gn3(y)))
        return shortcut + y


@keras.saving.register_keras_serializable(package="keras_vit")
class BiTStage(Stage):
    """A stage of BiT units.

    Args:
        num_units: Number of units.
        features: Number of inner channels of the units. The output has four times as many.
        strides: Stride of the first unit.

    Example:
    >>> tuple(BiTStage(num_units=2, features=32, strides=2)(np.ones((1, 8, 8, 64), "float32")).shape)
    (1, 4, 4, 128)
    """

    def _make_unit(self, number, strides):
        return BiTUnit(self.features, strides, dtype=self.dtype_policy, name=f"unit{number:02d}")
