"""Grid of patches that images are cut into, and the sequence of tokens that they become."""

from collections.abc import Sequence
from typing import Literal

from keras_vit import _checks
from keras_vit.models.config import Config, Size, pair, plain

REFERENCE_SIZE = 224  # pixels: the resolution whose grid the position table of a model for images of any size has


class Geometry(Config):
    """Facts that follow from the sizes of patches and images, and from the tokens; a base class of `ViTConfig`."""

    patch_size: Size
    resnet_blocks: Sequence[int] | None
    class_token: bool | None
    distillation_token: bool | Literal["unused"]
    num_registers: int

    @property
    def stem_stride(self) -> int:
        """Pixels per cell of the map that is cut into patches: 1 without a ResNet, 4 behind its root alone."""
        return 1 if self.resnet_blocks is None else 4 * 2 ** max(len(self.resnet_blocks) - 1, 0)

    @property
    def stride(self) -> tuple[int, int]:
        """Pixels per patch, (height, width)."""
        height, width = pair(self.patch_size)
        return self.stem_stride * height, self.stem_stride * width

    @property
    def grid(self) -> tuple[int, int]:
        """Grid of patches, (height, width), of the model's images; of 224-pixel images where these have any size."""
        if self.image_size is not None:
            return self.grid_of(self.image_size)
        height, width = (max(REFERENCE_SIZE // stride, 1) for stride in self.stride)
        return height, width

    def grid_of(self, image_size: Size) -> tuple[int, int]:
        """Return the grid of patches, (height, width), of images of a size.

        Args:
            image_size: An integer or (height, width).

        Raises:
            ValueError: If the size is not a multiple of the patch size.
        """
        size = _checks.size_pair("image_size", image_size)
        cells = tuple(-(-side // self.stem_stride) for side in size)  # "same" convolutions round up
        patch = pair(self.patch_size)
        if any(cell % edge for cell, edge in zip(cells, patch, strict=True)):
            unit = "patch_size" if self.stem_stride == 1 else "the stride"
            raise ValueError(
                f"`image_size` must be a multiple of {unit}={plain(self.stride)} in both dimensions. "
                f"Received: image_size={size}."
            )
        return cells[0] // patch[0], cells[1] // patch[1]

    @property
    def num_prefix_tokens(self) -> int:
        """Number of tokens with a position before the patches: class and distillation token."""
        return int(bool(self.class_token)) + int(bool(self.distillation_token))

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the sequence, at the model's grid: prefix tokens, registers and patches."""
        return self.num_prefix_tokens + self.num_registers + self.grid[0] * self.grid[1]
