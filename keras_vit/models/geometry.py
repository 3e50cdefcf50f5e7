"""Grid of patches of an image."""

from collections.abc import Sequence

from keras_vit.models.config import Size, plain
from keras_vit.util import checks

REFERENCE_SIZE = 224  # pixels; determines the grid of the position table in models for images of any size


def stem_stride(resnet_blocks: Sequence[int] | None) -> int:
    """Return the stride of a hybrid's ResNet, or 1 without a ResNet.

    The root has stride 4, and each stage after the first doubles the stride.
    """
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
