"""BiT, the ResNet baseline of the paper, and its arguments."""

import dataclasses
from typing import ClassVar, Literal

import keras

from keras_vit.layers import BiTRoot, BiTStage, resnet
from keras_vit.models.arguments import configured_by, with_arguments
from keras_vit.models.base import ConfiguredModel, images_input, normalized, resolve_policy
from keras_vit.models.config import Auto, Config, Options, Published
from keras_vit.models.heads import head_layer, predictions
from keras_vit.util import checks
from keras_vit.zoo.variants import BiTVariant


@dataclasses.dataclass(frozen=True)
class BiTConfig(Config, BiTVariant):
    """Arguments of `keras_vit.BiTResNet`.

    Args:
        pool_padding: Padding of the root's max-pooling: `"infinity"`, `"zeros"` or `"edge"`; see
            `keras_vit.layers.BiTRoot`.
    """

    COMMON: ClassVar[tuple[str, ...]] = (*Config.COMMON, "block_sizes", "width_factor")

    _: dataclasses.KW_ONLY
    pool_padding: Literal["infinity", "zeros", "edge"] = "infinity"

    def __post_init__(self):
        super().__post_init__()
        units = checks.sequence("block_sizes", self.block_sizes, "integers, the units of each stage")
        self._set("block_sizes", tuple(checks.positive_int("block_sizes", n) for n in units))
        self._set("width_factor", checks.positive_int("width_factor", self.width_factor))

    @property
    def stage_widths(self) -> tuple[int, ...]:
        """Number of inner channels of the units of each stage. The output of a stage has four times as many."""
        return tuple(64 * self.width_factor * 2**index for index in range(len(self.block_sizes)))

    @property
    def num_features(self) -> int:
        """Width of the input of the head."""
        return 4 * self.stage_widths[-1] if self.block_sizes else 64 * self.width_factor


@dataclasses.dataclass(frozen=True)
class PublishedBiT(Options, Published):
    """Arguments of the constructors of published BiT ResNets, such as `BiT_R50x1`.

    Args:
        pool_padding: As in `BiTResNet`. `"auto"` selects the padding of the published weights, or `"infinity"` without
            weights.
    """

    _: dataclasses.KW_ONLY
    pool_padding: Literal["infinity", "zeros", "edge"] | Auto = "auto"


@keras.saving.register_keras_serializable(package="keras_vit")
class BiTResNet(ConfiguredModel):
    """BiT, a pre-activation ResNet with group norm and weight standardization.

    A functional `keras.Model` from float images in [-1, 1], `[B, height, width, channels]`, to logits `[B, classes]`.

    Args:
        See `keras_vit.models.BiTConfig`.

    Raises:
        ValueError: If an argument is out of range.
        TypeError: If an argument is unknown.

    References:
        - [Big Transfer (BiT): General Visual Representation Learning](https://arxiv.org/abs/1912.11370)

    Example:
    >>> model = keras_vit.BiTResNet(block_sizes=(1, 1), image_size=32, classes=10)
    >>> model.output_shape
    (None, 10)
    """

    config: BiTConfig

    @configured_by(BiTConfig)
    def __init__(self, config: BiTConfig):
        policy = resolve_policy(config.dtype)
        images = images_input(config, policy)
        x = normalized(config, images)
        x = BiTRoot(64 * config.width_factor, config.pool_padding, dtype=policy, name="root_block")(x)
        for index, (num_units, width) in enumerate(zip(config.block_sizes, config.stage_widths, strict=True)):
            strides = 1 if index == 0 else 2
            x = BiTStage(num_units, width, strides, dtype=policy, name=f"block{index + 1}")(x)
        x = resnet.group_norm("bit", dtype=policy, name="norm-pre-head")(x)
        x = keras.layers.ReLU(dtype=policy, name="relu_pre_head")(x)
        x = keras.layers.GlobalAveragePooling2D(data_format="channels_last", dtype=policy, name="pool")(x)
        if config.include_top:
            x = predictions(config, head_layer(config, policy)(x))
        super().__init__(images, x, config, "bit_resnet")


BiTResNet.__doc__ = with_arguments(BiTResNet.__doc__, BiTConfig)
