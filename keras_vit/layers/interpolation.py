"""Resizing of position tables with one matrix per axis, and of the logits of pixels."""

from typing import Any

import numpy as np
from keras import ops

__all__ = ["resize_table"]

METHODS = ("reference", "bilinear", "bicubic", "antialiased", "dinov2")
DINOV2_OFFSET = 0.1  # Meta's code adds this to the new size to avoid rounding errors; it also changes coordinates


def resize_table(table: Any, new_grid: tuple[Any, Any], method: str = "reference") -> Any:
    """Resize position embeddings to a new grid.

    Args:
        table: Tensor `[1, h, w, D]`.
        new_grid: (height, width), integers or scalar integer tensors.
        method: `"reference"` (bilinear with aligned corners), `"bilinear"`, `"bicubic"`, `"antialiased"` (bicubic with
            antialiasing), or `"dinov2"` (bicubic, with coordinates for a size increased by 0.1).

    Returns:
        Tensor `[1, new height, new width, D]`.

    Example:
    >>> tuple(resize_table(np.ones((1, 2, 2, 8), "float32"), (3, 4)).shape)
    (1, 3, 4, 8)
    """
    _, height, width, _ = table.shape
    rows = interpolation_matrix(new_grid[0], height, method)
    columns = interpolation_matrix(new_grid[1], width, method)
    if method == "dinov2":  # leave the table unchanged if the grid is the same
        same = ops.logical_and(ops.equal(new_grid[0], height), ops.equal(new_grid[1], width))
        rows, columns = (ops.where(same, ops.eye(*ops.shape(matrix)), matrix) for matrix in (rows, columns))
    return ops.einsum("yh,xw,bhwd->byxd", rows, columns, ops.cast(table, "float32"))


def interpolation_matrix(new_size: Any, old_size: int, method: str, xp: Any = ops) -> Any:
    """Return the matrix `[new_size, old_size]` that resizes one axis.

    For equal sizes, the matrix is the identity, except with `"dinov2"`. `xp` is `keras.ops`, or `numpy` for double
    precision.
    """

    def real(value):
        return np.asarray(value, "float64") if xp is np else ops.cast(value, "float32")

    samples = xp.arange(new_size, dtype="int32")
    if method != "reference":
        scale = old_size / (real(new_size) + (DINOV2_OFFSET if method == "dinov2" else 0.0))
        return _pixel_center_matrix((real(samples) + 0.5) * scale - 0.5, old_size, scale, method, xp)
    # Aligned corners, computed in integers: the cell is exact, and the fraction is rounded only once.
    numerator, denominator = samples * (old_size - 1), xp.maximum(new_size - 1, 1)
    cell = xp.floor_divide(numerator, denominator)
    fraction = xp.expand_dims(real(numerator - cell * denominator) / real(denominator), 1)
    offset = xp.arange(old_size, dtype="int32") - xp.expand_dims(cell, 1)  # [new_size, old_size]
    return xp.where(offset == 0, 1.0 - fraction, xp.where(offset == 1, fraction, 0.0))


def _pixel_center_matrix(centers, old_size, scale, method, xp):
    """Return PyTorch's matrix for resizing one axis.

    `centers` `[new size]` are the coordinates of the new samples in units of the old samples, and `scale` is the
    distance between two new samples. `"bilinear"` and `"bicubic"` repeat the borders. `"antialiased"` is bicubic.
    """
    if method == "antialiased":
        return _antialiased(xp.expand_dims(centers, 1), old_size, xp.maximum(scale, 1.0), xp)
    columns = np.arange(-2, old_size + 2, dtype=np.float32)
    distance = xp.expand_dims(centers, 1) - columns  # [new, old + 4]
    weights = xp.maximum(0.0, 1.0 - xp.abs(distance)) if method == "bilinear" else _cubic(distance, -0.75, xp)
    if old_size == 1:
        return xp.sum(weights, axis=1, keepdims=True)
    first, last = (xp.sum(part, axis=1, keepdims=True) for part in (weights[:, :3], weights[:, -3:]))
    return xp.concatenate([first, weights[:, 3:-3], last], axis=1)


def _antialiased(centers, old_size, stretch, xp):
    columns = np.arange(old_size, dtype=np.float32)
    # PyTorch includes a sample if its center is within the support, rounded to whole samples.
    low = xp.floor(centers + 0.5 - 2.0 * stretch + 0.5)
    high = xp.floor(centers + 0.5 + 2.0 * stretch + 0.5)
    inside = xp.logical_and(columns >= low, columns < high)
    weights = xp.where(inside, _cubic((columns - centers) / stretch, -0.5, xp), 0.0)
    return weights / xp.sum(weights, axis=1, keepdims=True)


def _cubic(x, a, xp):
    """Keys' cubic convolution kernel."""
    x = xp.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return xp.where(x <= 1, near, xp.where(x < 2, far, 0.0))


def resize_logits(logits: Any, size: tuple[int, int]) -> Any:
    """Resize logits `[b, height, width, classes]` to `[b, *size, classes]` bilinearly, with half-pixel centers."""
    if tuple(logits.shape[1:3]) == tuple(size):
        return logits
    return ops.image.resize(logits, size, interpolation="bilinear", data_format="channels_last")
