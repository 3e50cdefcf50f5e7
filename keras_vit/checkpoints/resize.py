"""Resize position tables and patch kernels with NumPy, in double precision."""

import math
from typing import Any

import keras
import numpy as np

from keras_vit.layers.interpolation import interpolation_matrix
from keras_vit.models.base import ConfiguredModel

AXES = ("/pos_embedding_y", "/pos_embedding_x")  # tables of rows and columns


def resize_table(
    table: np.ndarray,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    num_slots: int = 0,
    method: str = "reference",
) -> np.ndarray:
    """Resize a position table `[1, num_slots + h*w, D]` to another grid. The slots of prefix tokens stay unchanged.

    `"reference"` is bilinear with aligned corners. `"bilinear"` and `"bicubic"` use pixel centers (Hugging Face),
    `"antialiased"` is bicubic with antialiasing (timm), and `"dinov2"` is Meta's bicubic. For some sizes (28 to 24, for
    example), rounding errors of the reference implementation make the last row and column zero. This function does not
    reproduce these errors.
    """
    grid = table[0, num_slots:].reshape(*old_grid, -1)  # [h, w, D]
    for axis in (0, 1):
        grid = resize_axis(grid, new_grid[axis], axis, method)
    grid = grid.astype(table.dtype).reshape(1, new_grid[0] * new_grid[1], -1)
    return np.concatenate([table[:, :num_slots], grid], axis=1)


def resize_axis(array: np.ndarray, size: int, axis: int, method: str) -> np.ndarray:
    """Resize one axis of an array. The result has double precision."""
    matrix = interpolation_matrix(size, array.shape[axis], method, np)
    return np.moveaxis(np.tensordot(matrix, array.astype(np.float64), axes=(1, axis)), 0, axis)


def resize_patch_kernel(kernel: np.ndarray, patch_size: tuple[int, int]) -> np.ndarray:
    """Resize the kernel of the patch embedding, so that resized patches give the same outputs as the original patches.

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
    """Convert a kernel of 3 input channels to another number of channels.

    For 1 channel, the kernel is summed over its channels, so that a gray image gives the same output as an image with
    three equal channels. Additional channels do not affect the output at first. Their weights are zero, or the kernel's
    mean if the layer standardizes its kernel.
    """
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True, dtype=np.float64).astype(kernel.dtype)
    fill = kernel.mean(axis=(0, 1, 2), keepdims=True, dtype=np.float64) if standardized else np.zeros((1, 1, 1, 1))
    shape = (*kernel.shape[:2], channels - 3, kernel.shape[3])
    return np.concatenate([kernel, np.broadcast_to(fill, shape).astype(kernel.dtype)], axis=2)


def resized_model(model: keras.Model, image_size: int) -> keras.Model:
    """Return a copy of a model for images of another size, with resized position embeddings."""
    if not isinstance(model, ConfiguredModel):
        raise ValueError(f"image_size is for models of keras_vit. Received: image_size={image_size} for another model.")
    config = model.get_config()
    any_size = {"position_grid": None} if "position_grid" in config else {}  # an argument of models for any image size
    copy = type(model).from_config({**config, **any_size, "image_size": image_size})
    own: Any = model.config
    other: Any = copy.config
    for source, target in zip(model.variables, copy.variables, strict=True):
        value = keras.ops.convert_to_numpy(source)
        if source.path.endswith(AXES):
            value = resize_axis(value, target.shape[1], 1, own.position_resizing)
        elif value.shape != target.shape:
            slots = value.shape[1] - math.prod(own.grid)
            value = resize_table(value, own.grid, other.grid, slots, own.position_resizing)
        target.assign(value)
    return copy
