"""Conversion between images and patches, and targets computed from patches, for every backend."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_vit.models.masked_patch import LEVELS, SMALL
from keras_vit.models.normalization import value_range

GRAY = 128.0  # displayed in place of masked patches


def to_patches(images: Any, patch_size: tuple[int, int]) -> Any:
    """Cut images `[b, h, w, c]` into patches in raster order, `[b, N, height, width, c]`."""
    _, height, width, channels = images.shape
    rows, columns = height // patch_size[0], width // patch_size[1]
    x = ops.reshape(images, (-1, rows, patch_size[0], columns, patch_size[1], channels))
    x = ops.transpose(x, (0, 1, 3, 2, 4, 5))  # [b, rows, columns, height, width, c]
    return ops.reshape(x, (-1, rows * columns, *patch_size, channels))


def to_pixels(images: Any, patch_size: tuple[int, int]) -> Any:
    """Cut images `[b, h, w, c]` into patches, `[b, N, pixels]` with the order (row, column, channel)."""
    cut = to_patches(images, patch_size)
    return ops.reshape(cut, (-1, cut.shape[1], math.prod(cut.shape[2:])))


def to_images(patches: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Put patches `[b, N, height, width, c]` together, `[b, h, w, c]`; the inverse of `to_patches`."""
    count, _, height, width, channels = patches.shape
    x = np.reshape(patches, (count, *grid, height, width, channels))
    x = np.transpose(x, (0, 1, 3, 2, 4, 5))  # [b, rows, height, columns, width, c]
    return np.reshape(x, (count, grid[0] * height, grid[1] * width, channels))


def pixel_statistics(pixels: Any) -> tuple[Any, Any]:
    """Return the mean and standard deviation of each patch `[..., pixels]`, both `[..., 1]`, for MAE's normalization.

    The variance is the unbiased estimate plus 1e-6.
    """
    mean = ops.mean(pixels, axis=-1, keepdims=True)
    variance = ops.sum(ops.square(pixels - mean), axis=-1, keepdims=True) / max(pixels.shape[-1] - 1, 1)
    return mean, ops.sqrt(variance + 1e-6)


def color_classes(colors: Any) -> Any:
    """Quantize colors `[..., c]` in [0, 1] to 3 bits per channel, int32 `[...]`: red + 8 green + 64 blue."""
    levels = ops.clip(ops.cast(ops.floor(colors * float(LEVELS)), "int32"), 0, LEVELS - 1)
    return ops.sum(levels * ops.cast(_place_values(colors.shape[-1]), "int32"), axis=-1)


def class_colors(classes: np.ndarray, channels: int) -> np.ndarray:
    """Return the central color of each class, `[..., c]` in [0, 1]; see `color_classes`."""
    return (np.asarray(classes)[..., None] // _place_values(channels) % LEVELS + 0.5) / LEVELS


def mean_color(patches: Any) -> Any:
    """Return the color class of the mean of each patch `[b, N, height, width, c]`, int32 `[b, N, 1]`."""
    return color_classes(ops.mean(patches, axis=(2, 3)))[..., None]


def small_colors(patches: Any) -> Any:
    """Average patches `[b, N, height, width, c]` to 4 x 4 and return their color classes, int32 `[b, N, 16]`."""
    height, width, channels = patches.shape[2:]
    rows, columns = (ops.cast(_averages(size), patches.dtype) for size in (height, width))
    small = ops.einsum("bnyxc,iy,jx->bnijc", patches, rows, columns)  # [b, N, 4, 4, c]
    return color_classes(ops.reshape(small, (-1, patches.shape[1], SMALL**2, channels)))


def invert(preprocess: Callable, channels: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that maps the model's range back to [0, 255]. See `value_range` for the arguments."""
    low, high = value_range(preprocess, channels)
    return lambda images: (images - low) / (high - low) * 255.0


def as_bytes(images: np.ndarray) -> np.ndarray:
    """Round and clip values to uint8."""
    return np.clip(np.rint(images), 0, 255).astype(np.uint8)


def as_images(patches: Mapping[str, np.ndarray], grid: tuple[int, int]) -> dict[str, np.ndarray]:
    """Convert patches `[n, N, height, width, c]` in [0, 255] to uint8 images, by name."""
    return {name: as_bytes(to_images(cut, grid)) for name, cut in patches.items()}


def _place_values(channels: int) -> np.ndarray:
    return LEVELS ** np.arange(channels)


def _averages(size: int) -> np.ndarray:
    """Return the matrix `[4, size]` that averages `size` pixels to 4. Each pixel is weighted by its overlap."""
    edges = np.arange(SMALL + 1) * size / SMALL
    pixel = np.arange(size)
    inside = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)  # [4, size]
    return np.maximum(inside, 0.0) * SMALL / size
