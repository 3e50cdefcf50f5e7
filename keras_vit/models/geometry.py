"""Grid of patches that images are cut into, and the sequence of tokens that they become."""

from collections.abc import Sequence
from typing import Literal

from keras_vit import _checks
from keras_vit.models.config import Config, Size, plain

REFERENCE_SIZE = 224  # pixels: the resolution whose grid the position table of a model for images of any size has


class Geometry(Config):
    """Facts that follow from the sizes of patches and images, and from the tokens; a base class of `ViTConfig`."""

    patch_size: Size
    resnet_blocks: Sequence[int] | None
    class_token: bool | None
    distillation_token: bool | Literal["unused"]
    num_registers: int
    position_grid: Size | None

    @property
    def stem_stride(self) -> int:
        """Pixels per cell of the map that is cut into patches; see `stem_stride`."""
        return stem_stride(self.resnet_blocks)

    @property
    def stride(self) -> tuple[int, int]:
        """Pixels per patch, (height, width)."""
        return stride(self.patch_size, self.resnet_blocks)

    @property
    def grid(self) -> tuple[int, int]:
        """Grid of patches, (height, width), of the model's images; of the position table where these have any size."""
        return grid(self.patch_size, self.resnet_blocks, self.image_size, self.position_grid)

    def grid_of(self, image_size: Size) -> tuple[int, int]:
        """Return the grid of patches, (height, width), of images of a size.

        Args:
            image_size: An integer or (height, width).

        Raises:
            ValueError: If the size is not a multiple of the patch size.
        """
        return grid(self.patch_size, self.resnet_blocks, image_size)

    @property
    def num_prefix_tokens(self) -> int:
        """Number of tokens with a position before the patches: class and distillation token."""
        return int(bool(self.class_token)) + int(bool(self.distillation_token))

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the sequence, at the model's grid: prefix tokens, registers and patches."""
        return self.num_prefix_tokens + self.num_registers + self.grid[0] * self.grid[1]


def stem_stride(resnet_blocks: Sequence[int] | None) -> int:
    """Return the pixels per cell of the map that is cut into patches: 1 without a ResNet, 4 after its root."""
    return 1 if resnet_blocks is None else 4 * 2 ** max(len(resnet_blocks) - 1, 0)


def stride(patch_size: Size, resnet_blocks: Sequence[int] | None) -> tuple[int, int]:
    """Return the pixels per patch, (height, width)."""
    height, width = _checks.size_pair("patch_size", patch_size)
    return stem_stride(resnet_blocks) * height, stem_stride(resnet_blocks) * width


def grid(
    patch_size: Size,
    resnet_blocks: Sequence[int] | None = None,
    image_size: Size | None = None,
    position_grid: Size | None = None,
) -> tuple[int, int]:
    """Return the grid of patches, (height, width), of a position table; see the arguments of `ViTConfig`."""
    pixels = stride(patch_size, resnet_blocks)
    if image_size is None:
        if position_grid is not None:
            return _checks.size_pair("position_grid", position_grid)
        return max(REFERENCE_SIZE // pixels[0], 1), max(REFERENCE_SIZE // pixels[1], 1)
    size, stem = _checks.size_pair("image_size", image_size), stem_stride(resnet_blocks)
    cells = tuple(-(-side // stem) for side in size)  # "same" convolutions round up
    patch = pixels[0] // stem, pixels[1] // stem
    if any(cell % edge for cell, edge in zip(cells, patch, strict=True)):
        unit = "patch_size" if stem == 1 else "the stride"
        raise ValueError(
            f"`image_size` must be a multiple of {unit}={plain(pixels)} in both dimensions. "
            f"Received: image_size={size}."
        )
    return cells[0] // patch[0], cells[1] // patch[1]
