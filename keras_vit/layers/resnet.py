"""ResNet stem of the hybrids: standardized convolutions and post-activation bottleneck units."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers.base import BaseLayer, CompositeLayer, Shape
from keras_vit.layers.normalization import GroupNorm
from keras_vit.util import checks

__all__ = ["BottleneckUnit", "ResNetStage", "StdConv2D"]


def strided_shape(shape: Sequence[int | None], strides: tuple[int, int], filters: int) -> tuple[int | None, ...]:
    """Return the output shape of a "same" convolution over `[B, H, W, C]`. An unknown height or width stays None."""
    batch, *spatial, _ = shape
    spatial = [None if side is None else -(-side // stride) for side, stride in zip(spatial, strides, strict=True)]
    return (batch, *spatial, filters)


@keras.saving.register_keras_serializable(package="keras_vit")
class StdConv2D(BaseLayer):
    """2-D convolution without bias whose kernel is standardized per output channel.

    Args:
        filters: Number of output channels.
        kernel_size: Kernel size, an integer or a pair.
        strides: Stride, an integer or a pair.
        padding: `"same"` (as in TensorFlow: asymmetric for even inputs) or `"valid"`.
        epsilon: Number added to the kernel's standard deviation, or to its variance if `epsilon_inside` is True.
        epsilon_inside: Whether to add `epsilon` under the square root.

    Call arguments:
        x: Tensor `[B, H, W, C]`.

    References:
        - [Weight Standardization](https://arxiv.org/abs/1903.10520)
        - [Big Transfer](https://arxiv.org/abs/1912.11370)

    Example:
    >>> tuple(StdConv2D(filters=8, kernel_size=3, strides=2)(np.ones((1, 8, 8, 3), "float32")).shape)
    (1, 4, 4, 8)
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, int],
        strides: int | tuple[int, int] = 1,
        padding: str = "same",
        epsilon: float = 1e-5,
        epsilon_inside: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.filters = checks.positive_int("filters", filters)
        self.kernel_size = checks.size_pair("kernel_size", kernel_size)
        self.strides = checks.size_pair("strides", strides)
        self.padding = checks.choice("padding", padding, ("same", "valid"))
        self.epsilon = float(epsilon)
        self.epsilon_inside = epsilon_inside
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build(self, input_shape: Shape) -> None:
        # autocast=False: the kernel's statistics are computed in float32 under every dtype policy.
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*self.kernel_size, input_shape[-1], self.filters),
            initializer="lecun_normal",
            autocast=False,
        )
        super().build(input_shape)

    def standardized_kernel(self) -> Any:
        """Return the standardized kernel, float32 `[h, w, in, out]`."""
        kernel = ops.cast(self.kernel, keras.backend.result_type(self.kernel.dtype, "float32"))
        centered = kernel - ops.mean(kernel, axis=(0, 1, 2))
        variance = ops.mean(ops.square(centered), axis=(0, 1, 2))
        if self.epsilon_inside:
            return centered * ops.rsqrt(variance + self.epsilon)
        return centered / (ops.sqrt(variance) + self.epsilon)

    def call(self, x: Any) -> Any:
        kernel = ops.cast(self.standardized_kernel(), self.compute_dtype)
        return ops.conv(x, kernel, strides=self.strides, padding=self.padding, data_format="channels_last")

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, *spatial, channels = input_shape
        if self.padding == "valid":
            spatial = [None if s is None else s - k + 1 for s, k in zip(spatial, self.kernel_size, strict=True)]
        return strided_shape((batch, *spatial, channels), self.strides, self.filters)


# Arguments of StdConv2D and GroupNorm in google-research's ResNets, in timm's ResNets, and in BiT.
_NUMERICS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "reference": ({"epsilon": 1e-5}, {"epsilon": 1e-6}),
    "timm": ({"epsilon": 1e-8, "epsilon_inside": True}, {"epsilon": 1e-5}),
    "bit": ({"epsilon": 1e-10, "epsilon_inside": True, "padding": "valid"}, {"epsilon": 1e-5}),
}


def convolution(numerics: str, filters: int, kernel_size: int, strides: Any = 1, **kwargs: Any) -> StdConv2D:
    """Create a standardized convolution with the epsilon and padding of a family of ResNets."""
    return StdConv2D(filters, kernel_size, strides, **_NUMERICS[numerics][0], **kwargs)


def group_norm(numerics: str, **kwargs: Any) -> GroupNorm:
    """Create a group norm with the epsilon of a family of ResNets."""
    return GroupNorm(**_NUMERICS[numerics][1], **kwargs)


class Bottleneck(CompositeLayer):
    """Residual unit of three convolutions, which subclasses add in the order of execution."""

    is_block = True
    resnet_numerics = "bit"

    def __init__(self, features: int, strides: int | tuple[int, int] = 1, **kwargs: Any):
        super().__init__(**kwargs)
        self.features = checks.positive_int("features", features)
        self.strides = checks.size_pair("strides", strides)

    def _add_conv(self, name, filters, kernel_size, shape, strides=1):
        """Build a convolution, set it as an attribute, and return the shape of its output."""
        layer = convolution(self.resnet_numerics, filters, kernel_size, strides, dtype=self.dtype_policy, name=name)
        layer.build(shape)
        setattr(self, name, layer)
        return layer.compute_output_shape(shape)

    def _add_norm(self, name, shape, **arguments):
        layer = group_norm(self.resnet_numerics, dtype=self.dtype_policy, name=name, **arguments)
        layer.build(shape)
        setattr(self, name, layer)

    def _needs_projection(self, shape):
        return shape[-1] != 4 * self.features or self.strides != (1, 1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return strided_shape(input_shape, self.strides, self.features * 4)


@keras.saving.register_keras_serializable(package="keras_vit")
class BottleneckUnit(Bottleneck):
    """Post-activation bottleneck: 1x1, 3x3 and 1x1 standardized convolutions with group norms.

    Args:
        features: Number of inner channels. The output has four times as many.
        strides: Stride of the 3x3 convolution.
        resnet_numerics: `"reference"` or `"timm"`.

    References:
        - [Deep Residual Learning](https://arxiv.org/abs/1512.03385)
        - [Big Transfer](https://arxiv.org/abs/1912.11370)

    Example:
    >>> tuple(BottleneckUnit(features=32, strides=2)(np.ones((1, 8, 8, 64), "float32")).shape)
    (1, 4, 4, 128)
    """

    def __init__(
        self, features: int, strides: int | tuple[int, int] = 1, resnet_numerics: str = "reference", **kwargs: Any
    ):
        super().__init__(features, strides, **kwargs)
        self.resnet_numerics = checks.choice("resnet_numerics", resnet_numerics, ("reference", "timm"))

    def build(self, input_shape: Shape) -> None:
        shape, out = tuple(input_shape), self.features * 4
        self.needs_projection = self._needs_projection(shape)
        if self.needs_projection:
            self._add_norm("gn_proj", self._add_conv("conv_proj", out, 1, shape, self.strides))
        shape = self._add_conv("conv1", self.features, 1, shape)
        self._add_norm("gn1", shape)
        shape = self._add_conv("conv2", self.features, 3, shape, self.strides)
        self._add_norm("gn2", shape)
        shape = self._add_conv("conv3", out, 1, shape)
        self._add_norm("gn3", shape, scale_initializer="zeros")  # initially the unit returns its shortcut
        super().build(input_shape)

    def call(self, x: Any) -> Any:
        shortcut = self.gn_proj(self.conv_proj(x)) if self.needs_projection else x
        y = ops.relu(self.gn1(self.conv1(x)))
        y = ops.relu(self.gn2(self.conv2(y)))
        y = self.gn3(self.conv3(y))
        return ops.relu(shortcut + y)


class Stage(CompositeLayer):
    """Sequence of units of equal resolution. The first unit may have a stride."""

    def __init__(self, num_units: int, features: int, strides: int | tuple[int, int] = 1, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_units = checks.positive_int("num_units", num_units)
        self.features = checks.positive_int("features", features)
        self.strides = checks.size_pair("strides", strides)

    def _make_unit(self, number, strides):
        raise NotImplementedError

    def build(self, input_shape: Shape) -> None:
        self.units = []
        shape = tuple(input_shape)
        for index in range(self.num_units):
            unit = self._make_unit(index + 1, self.strides if index == 0 else (1, 1))
            unit.build(shape)
            shape = unit.compute_output_shape(shape)
            self.units.append(unit)
        super().build(input_shape)

    def call(self, x: Any) -> Any:
        for unit in self.units:
            x = unit(x)
        return x

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return strided_shape(input_shape, self.strides, self.features * 4)


@keras.saving.register_keras_serializable(package="keras_vit")
class ResNetStage(Stage):
    """A stage of post-activation bottleneck units, as in the hybrids.

    Args:
        num_units: Number of units.
        features: Number of inner channels of the units. The output has four times as many.
        strides: Stride of the first unit.
        resnet_numerics: `"reference"` or `"timm"`.

    Example:
    >>> tuple(ResNetStage(num_units=2, features=32, strides=2)(np.ones((1, 8, 8, 64), "float32")).shape)
    (1, 4, 4, 128)
    """

    def __init__(
        self,
        num_units: int,
        features: int,
        strides: int | tuple[int, int] = 1,
        resnet_numerics: str = "reference",
        **kwargs: Any,
    ):
        super().__init__(num_units, features, strides, **kwargs)
        self.resnet_numerics = checks.choice("resnet_numerics", resnet_numerics, ("reference", "timm"))

    def _make_unit(self, number, strides):
        return BottleneckUnit(
            self.features, strides, self.resnet_numerics, dtype=self.dtype_policy, name=f"unit{number}"
        )
