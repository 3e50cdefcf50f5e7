"""Interpolation of position tables and patch kernels, in NumPy and double precision."""

import numpy as np

from keras_vit import _checks
from keras_vit.layers.interpolation import METHODS, interpolation_matrix


def resize_table(
    table: np.ndarray,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    num_slots: int = 0,
    method: str = "reference",
) -> np.ndarray:
    """Resize a position table `[1, num_slots + h*w, D]` to another grid; the slots of prefix tokens stay as they are.

    `"reference"` is bilinear between the corners, `"bilinear"` and `"bicubic"` use pixel centers (Hugging Face),
    `"antialiased"` is bicubic with antialiasing (timm), and `"dinov2"` is Meta's bicubic. The reference leaves the last
    row and column zero for some sizes (28 to 24, for example), by rounding, which is not repeated.
    """
    _checks.choice("method", method, METHODS)
    grid = table[0, num_slots:].reshape(*old_grid, -1)  # [h, w, D]
    for axis in (0, 1):
        grid = resize_axis(grid, new_grid[axis], axis, method)
    grid = grid.astype(table.dtype).reshape(1, new_grid[0] * new_grid[1], -1)
    return np.concatenate([table[:, :num_slots], grid], axis=1)


def resize_axis(array: np.ndarray, size: int, axis: int, method: str) -> np.ndarray:
    """Resize one axis of an array, in double precision."""
    matrix = interpolation_matrix(size, array.shape[axis], method, np)
    return np.moveaxis(np.tensordot(matrix, array.astype(np.float64), axes=(1, axis)), 0, axis)


def resize_patch_kernel(kernel: np.ndarray, patch_size: tuple[int, int]) -> np.ndarray:
    """Resize a patch embedding kernel so that resized patches give the outputs of the originals.

    References:
        - [FlexiViT](https://arxiv.org/abs/2212.08013), section 3.4
    """
    result = kernel.astype(np.float64)
    for axis in (0, 1):
        resize = interpolation_matrix(patch_size[axis], kernel.shape[axis], "bilinear", np)  # [new, old]
        # A two-dimensional resize is a Kronecker product, and so is its pseudo-inverse.
        result = np.moveaxis(np.tensordot(np.linalg.pinv(resize.T), result, axes=(1, axis)), 0, axis)
    return result.astype(kernel.dtype)


def adapt_channels(kernel: np.ndarray, channels: int, standardized: bool) -> np.ndarray:
    """Change the input channels of a kernel that was trained on three.

    One channel gets the sum, so that a gray image gives the output of its three equal channels. Further channels get
    values that change nothing at first: zeros, or the kernel's mean where weights are standardized.
    """
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True, dtype=np.float64).astype(kernel.dtype)
    fill = kernel.mean(axis=(0, 1, 2), keepdims=True, dtype=np.float64) if standardized else np.zeros((1, 1, 1, 1))
    shape = (*kernel.shape[:2], channels - 3, kernel.shape[3])
    return np.concatenate([kernel, np.broadcast_to(fill, shape).astype(kernel.dtype)], axis=2)
