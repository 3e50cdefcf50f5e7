"""Configuration of Vision Transformers: the arguments, the grid of patches and other derived properties."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from keras_vit.layers import position
from keras_vit.models.config import Size, plain
from keras_vit.models.vit_options import STANDARD, ViTArguments
from keras_vit.util import checks

REFERENCE_SIZE = 224  # pixels; determines the grid of the position table in models for images of any size


def stem_stride(resnet_blocks: Sequence[int] | None) -> int:
    """Return the stride of a hybrid's ResNet, or 1. The root has stride 4; each stage after the first doubles it."""
    return 1 if resnet_blocks is None else 4 * 2 ** max(len(resnet_blocks) - 1, 0)


def stride(patch_size: Size, resnet_blocks: Sequence[int] | None) -> tuple[int, int]:
    """Return the size of a patch in image pixels, (height, width)."""
    height, width = checks.size_pair("patch_size", patch_size)
    return stem_stride(resnet_blocks) * height, stem_stride(resnet_blocks) * width


def grid(
    patch_size: Size,
    resnet_blocks: Sequence[int] | None = None,
    image_size: Size | None = None,
    position_grid: Size | None = None,
) -> tuple[int, int]:
    """Return the grid (height, width) of a position table; see the arguments of `ViTConfig`."""
    pixels = stride(patch_size, resnet_blocks)
    if image_size is None:
        if position_grid is not None:
            return checks.size_pair("position_grid", position_grid)
        return max(REFERENCE_SIZE // pixels[0], 1), max(REFERENCE_SIZE // pixels[1], 1)
    size, stem = checks.size_pair("image_size", image_size), stem_stride(resnet_blocks)
    cells = tuple(-(-side // stem) for side in size)  # "same" convolutions round up
    patch = pixels[0] // stem, pixels[1] // stem
    if any(cell % edge for cell, edge in zip(cells, patch, strict=True)):
        unit = "patch_size" if stem == 1 else "the stride"
        raise ValueError(
            f"`image_size` must be a multiple of {unit}={plain(pixels)} in both dimensions. "
            f"Received: image_size={size}."
        )
    return cells[0] // patch[0], cells[1] // patch[1]


@dataclasses.dataclass(frozen=True)
class ViTConfig(ViTArguments):
    """Arguments of `keras_vit.VisionTransformer`, and the properties derived from them.

    Raises:
        ValueError: If an argument is out of range, or two arguments exclude each other.

    Example:
    >>> config = ViTConfig(patch_size=16, image_size=384)
    >>> config.grid, config.num_tokens, config.class_token
    ((24, 24), 577, True)
    """

    def __post_init__(self):
        super().__post_init__()
        _ = self.grid  # check that the image size is a multiple of the patch size

    @property
    def stride(self) -> tuple[int, int]:
        """Size of a patch in image pixels, (height, width)."""
        return stride(self.patch_size, self.resnet_blocks)

    @property
    def grid(self) -> tuple[int, int]:
        """Grid of patches (height, width) of the images, or of the position table for images of any size."""
        return grid(self.patch_size, self.resnet_blocks, self.image_size, self.position_grid)

    @property
    def num_prefix_tokens(self) -> int:
        """Number of prefix tokens with position embeddings: class token and distillation token."""
        return int(bool(self.class_token)) + int(bool(self.distillation_token))

    @property
    def num_tokens(self) -> int:
        """Length of the sequence for the model's grid: prefix tokens, registers and patches."""
        return self.num_prefix_tokens + self.num_registers + self.grid[0] * self.grid[1]

    @property
    def num_output_tokens(self) -> int | None:
        """Number of tokens that the last block must output, from the start of the sequence, or None for all tokens."""
        if self.pooling != "token" or self.position_embedding == "relative" or self.has_own_blocks:
            return None
        return 2 if self.distillation_token is True else 1

    @property
    def has_own_blocks(self) -> bool:
        """Whether `block` or `attention` is a layer of the user, whose properties are unknown."""
        return any(getattr(self, name) != usual for name, usual in STANDARD.items())

    @property
    def has_position_table(self) -> bool:
        """Whether position embeddings are added to the tokens."""
        return self.position_embedding in position.KINDS

    @property
    def num_position_entries(self) -> int:
        """Number of rows of a learned 1-D position table, or 0 for other position embeddings."""
        return self.num_prefix_tokens + self.grid[0] * self.grid[1] if self.position_embedding == "learned" else 0

    @property
    def attention_size(self) -> int:
        """Total width of the attention heads of a block."""
        return self.hidden_size if self.head_dim is None else self.num_heads * self.head_dim

    @property
    def drop_path_rates(self) -> tuple[float, ...]:
        """Stochastic depth rate of each block."""
        return tuple(float(rate) for rate in np.linspace(0.0, self.drop_path_rate, self.num_layers))

    @property
    def pooled_size(self) -> int:
        """Width of the pooled tokens."""
        return 2 * self.hidden_size if self.pooling == "token+gap" else self.hidden_size

    @property
    def num_features(self) -> int:
        """Width of the input of the head."""
        return self.pooled_size if self.representation_size is None else self.representation_size
