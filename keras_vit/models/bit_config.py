"""Arguments of BiT ResNets: their names, types, defaults and checks, and what follows from them."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

import keras

from keras_vit import _checks
from keras_vit.models.config import Config, Size


@dataclasses.dataclass(frozen=True)
class BiTConfig(Config):
    """Arguments of `keras_vit.BiTResNet`.

    Args:
        block_sizes: Number of units of each stage.
        width_factor: Multiple of the channels of a ResNet.
        image_size: An integer, (height, width), or None for images of any size.
        classes: Number of classes.
        include_top: Whether the model ends in the classification head. Without it, the output is the mean of the last
            map.
        classifier_activation: Activation of the output, such as `"softmax"`, computed in float32. None for logits.
        name: Name of the model.
        dtype: Dtype policy or its name, such as `"mixed_bfloat16"`. None for the global policy.
        channels: Number of channels of the images.
        head_bias: Initial bias of the head.
        pool_padding: Border of the root's max-pooling: `"infinity"`, `"zeros"` or `"edge"`; see
            `keras_vit.layers.BiTRoot`.
        input_range: Values of black and white in the images, such as `(0, 255)`. A first layer then maps them to the
            values that the weights take: the model's `input_normalization`, [-1, 1] if that is not known. None for
            images that are normalized before.

    Raises:
        ValueError: If an argument is out of range.

    Example:
    >>> BiTConfig(width_factor=3).num_features
    6144
    """

    COMMON: ClassVar[tuple[str, ...]] = (*Config.COMMON, "block_sizes", "width_factor")

    block_sizes: Sequence[int] = (3, 4, 6, 3)
    width_factor: int = 1
    image_size: Size | None = 224
    classes: int | None = 1000
    include_top: bool = True
    classifier_activation: str | None = None
    name: str | None = dataclasses.field(default=None, compare=False)
    dtype: "str | keras.DTypePolicy | None" = dataclasses.field(default=None, compare=False)
    _: dataclasses.KW_ONLY
    channels: int = 3
    head_bias: float = 0.0
    pool_padding: Literal["infinity", "zeros", "edge"] = "infinity"
    input_range: tuple[float, float] | None = None

    def __post_init__(self):
        self._check_common()
        units = _checks.sequence("block_sizes", self.block_sizes, "integers, the units of each stage")
        self._set("block_sizes", tuple(_checks.positive_int("block_sizes", n) for n in units))
        self._set("width_factor", _checks.positive_int("width_factor", self.width_factor))
        _checks.choice("pool_padding", self.pool_padding, ("infinity", "zeros", "edge"))

    @property
    def stage_widths(self) -> tuple[int, ...]:
        """Inner channels of the units of each stage; the stages end in four times as many."""
        return tuple(64 * self.width_factor * 2**index for index in range(len(self.block_sizes)))

    @property
    def num_features(self) -> int:
        """Width of the input of the head."""
        return 4 * self.stage_widths[-1] if self.block_sizes else 64 * self.width_factor
