"""Arguments of BiT ResNets: their names, types, defaults and checks, and facts that follow from them."""

import dataclasses
from typing import ClassVar, Literal

from keras_vit import _checks
from keras_vit.models.config import Auto, Config, Options, Published
from keras_vit.models.variants import BiTVariant


@dataclasses.dataclass(frozen=True)
class BiTConfig(Config, BiTVariant):
    """Arguments of `keras_vit.BiTResNet`.

    Args:
        pool_padding: Border of the root's max-pooling: `"infinity"`, `"zeros"` or `"edge"`; see
            `keras_vit.layers.BiTRoot`.

    Raises:
        ValueError: If an argument is out of range.

    Example:
    >>> BiTConfig(width_factor=3).num_features
    6144
    """

    COMMON: ClassVar[tuple[str, ...]] = (*Config.COMMON, "block_sizes", "width_factor")

    _: dataclasses.KW_ONLY
    pool_padding: Literal["infinity", "zeros", "edge"] = "infinity"

    def __post_init__(self):
        super().__post_init__()
        units = _checks.sequence("block_sizes", self.block_sizes, "integers, the units of each stage")
        self._set("block_sizes", tuple(_checks.positive_int("block_sizes", n) for n in units))
        self._set("width_factor", _checks.positive_int("width_factor", self.width_factor))

    @property
    def stage_widths(self) -> tuple[int, ...]:
        """Inner channels of the units of each stage; the stages end in four times as many."""
        return tuple(64 * self.width_factor * 2**index for index in range(len(self.block_sizes)))

    @property
    def num_features(self) -> int:
        """Width of the input of the head."""
        return 4 * self.stage_widths[-1] if self.block_sizes else 64 * self.width_factor


@dataclasses.dataclass(frozen=True)
class PublishedBiT(Options, Published):
    """Arguments of the constructors of BiT ResNets, such as `BiT_R50x1`.

    Args:
        pool_padding: As in `BiTResNet`. `"auto"` for that of published weights, `"infinity"` without weights.
    """

    _: dataclasses.KW_ONLY
    pool_padding: Literal["infinity", "zeros", "edge"] | Auto = "auto"
