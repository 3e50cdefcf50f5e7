"""Position embeddings for grids of any size: learned 1-D and 2-D tables, and fixed 2-D sine-cosine tables."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.base import BaseLayer, Shape
from keras_vit.layers.interpolation import METHODS, resize_table
from keras_vit.util import checks

__all__ = ["AddPositionEmbs", "FixedPositionEmbs", "sincos_2d_table"]

KINDS = ("learned", "learned2d", "sincos2d")


def _omega(quarter, endpoint=True):
    return 1.0 / 10_000.0 ** (np.arange(quarter) / (quarter - endpoint))


def sincos_2d_table(height: int, width: int, hidden_size: int, endpoint: bool = True) -> np.ndarray:
    """Return the fixed 2-D sine-cosine embedding of a grid, float32 `[1, height*width, hidden_size]`.

    The four quarters of the width are sin x, cos x, sin y, cos y.

    Args:
        height: Rows of the grid.
        width: Columns of the grid.
        hidden_size: Width of the embedding, a multiple of 4.
        endpoint: Whether the frequencies include their lower bound, 1 / 10000. Masked autoencoders use False.

    Raises:
        ValueError: If `hidden_size` is not a multiple of 4, or is 4 while `endpoint` is True.

    References:
        - [Better plain ViT baselines for ImageNet-1k](https://arxiv.org/abs/2205.01580)
        - [Masked Autoencoders Are Scalable Vision Learners](https://arxiv.org/abs/2111.06377), appendix A.1

    Example:
    >>> sincos_2d_table(2, 3, 8).shape
    (1, 6, 8)
    """
    checks.positive_int("hidden_size", hidden_size, minimum=8 if endpoint else 4)
    checks.divisible("hidden_size", hidden_size, "the four quarters of sincos2d", 4)
    y, x = np.mgrid[:height, :width]
    y, x = (np.outer(axis.ravel(), _omega(hidden_size // 4, endpoint)) for axis in (y, x))  # [h*w, D/4]
    table = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)  # [h*w, D]
    return table.astype("float32")[np.newaxis]


def _sincos_1d(length, half):
    """Return the sine and cosine of each position, `[1, length, half]`. `length` may be a tensor."""
    angles = ops.outer(ops.cast(ops.arange(length), "float32"), _omega(half // 2).astype("float32"))
    return ops.expand_dims(ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=1), 0)


def _side_by_side(columns, rows, height, width):
    """Concatenate embeddings of the columns `[1, w, D/2]` and of the rows `[1, h, D/2]` to `[1, h, w, D]`."""
    shape = (1, height, width, columns.shape[-1])
    parts = [ops.expand_dims(columns, 1), ops.expand_dims(rows, 2)]
    return ops.concatenate([ops.broadcast_to(part, shape) for part in parts], axis=-1)


@keras.saving.register_keras_serializable(package="keras_vit")
class AddPositionEmbs(BaseLayer):
    """Addition of position embeddings to a sequence of tokens.

    The sequence is `[prefix tokens, registers, patches in raster order]`. The prefix tokens (class token) have learned
    embeddings, except with `"sincos2d"`. Nothing is added to the registers.

    Args:
        grid: (height, width) of the patch grid, or None for a square grid that matches the length of the sequence.
        kind: `"learned"` (1-D, raster order), `"learned2d"` (a row and a column table, each of half the width) or
            `"sincos2d"` (fixed).
        num_prefix_tokens: Number of prefix tokens.
        num_registers: Number of registers.
        stddev: Standard deviation of the initial embeddings.
        method: Method for resizing the embeddings to another grid: `"reference"` (bilinear with aligned corners),
            `"bilinear"`, `"bicubic"` or `"antialiased"` (bicubic with antialiasing).

    Call arguments:
        x: Tensor `[B, prefix + registers + N, D]`.
        patches: Tensor `[B, h, w, ...]` with the grid of the patches of `x`, for images of variable size. The
            embeddings are resized to this grid. None if the patches have the layer's grid.

    Raises:
        ValueError: If the length of the sequence does not match the grid.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), equation 1 and appendix D.4

    Example:
    >>> tuple(AddPositionEmbs(grid=(2, 3), num_prefix_tokens=1)(np.ones((1, 7, 8), "float32")).shape)
    (1, 7, 8)
    """

    is_embedding = True
    _is_trained = True

    def __init__(
        self,
        grid: int | tuple[int, int] | None = None,
        kind: str = "learned",
        num_prefix_tokens: int = 0,
        num_registers: int = 0,
        stddev: float = 0.02,
        method: str = "reference",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.grid = None if grid is None else checks.size_pair("grid", grid)
        self.kind = checks.choice("kind", kind, KINDS)
        self.num_prefix_tokens = checks.positive_int("num_prefix_tokens", num_prefix_tokens, minimum=0)
        self.num_registers = checks.positive_int("num_registers", num_registers, minimum=0)
        self.stddev = float(stddev)
        self.method = checks.choice("method", method, METHODS)
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, x_shape: Shape, patches_shape: Shape | None = None) -> None:
        _, length, hidden_size = x_shape
        self._table_grid = self.grid or self._square_grid(length)
        height, width = self._table_grid
        if patches_shape is None and length is not None:
            expected = self.num_prefix_tokens + self.num_registers + height * width
            if length != expected:
                raise ValueError(
                    f"A grid of {height} x {width} patches with {self.num_prefix_tokens} prefix tokens and "
                    f"{self.num_registers} registers has {expected} tokens. Received: a sequence of {length}. "
                    f"Pass the `grid` of the images, or their patches for images of variable size."
                )
        initializer = self._initializer()
        prefix = self.num_prefix_tokens

        def add_table(suffix, entries, width):
            name = f"pos_embedding{suffix}"
            return self.add_weight(
                name=name, shape=(1, entries, width), initializer=initializer, trainable=self._is_trained
            )

        if self.kind == "learned":
            self.pos_embedding = add_table("", prefix + height * width, hidden_size)
        elif self.kind == "learned2d":
            half = checks.divisible("hidden_size", hidden_size, "the two tables of learned2d", 2) // 2
            self.pos_embedding_y = add_table("_y", height, half)
            self.pos_embedding_x = add_table("_x", width, half)
            if prefix:
                self.pos_embedding_prefix = add_table("_prefix", prefix, hidden_size)
        else:
            self._fixed_table = sincos_2d_table(height, width, hidden_size)
        super().build(x_shape)

    def _initializer(self):
        return keras.initializers.RandomNormal(stddev=self.stddev)

    def _square_grid(self, length):
        patches = (length or 0) - self.num_prefix_tokens - self.num_registers
        size = int(max(patches, 0) ** 0.5 + 0.5)
        if patches < 1 or size * size != patches:
            raise ValueError(
                f"Without `grid` the patches must form a square. Received: a sequence of {length} tokens with "
                f"{self.num_prefix_tokens} prefix tokens and {self.num_registers} registers. Pass grid=(height, width)."
            )
        return size, size

    def call(self, x: Any, patches: Any = None) -> Any:
        prefix, grid = self._tables()
        hidden_size = grid.shape[-1]
        if patches is not None:
            static = patches.shape[1], patches.shape[2]
            if static != self._table_grid:
                dynamic = ops.shape(patches)
                height, width = (d if s is None else s for s, d in zip(static, (dynamic[1], dynamic[2]), strict=True))
                grid = self._resized(grid, (height, width))
        grid = ops.reshape(grid, (1, -1, hidden_size))  # [1, h*w, D]
        parts = [ops.cast(part, x.dtype) for part in (prefix, grid) if part is not None]
        if self.num_registers or (prefix is None and self.num_prefix_tokens):
            empty = self.num_registers + (self.num_prefix_tokens if prefix is None else 0)
            parts.insert(len(parts) - 1, ops.zeros((1, empty, hidden_size), dtype=x.dtype))
        return x + (parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=1))

    def table(self) -> Any:
        """Return the position embeddings of the patches on the layer's grid, `[1, h, w, D]`."""
        return self._tables()[1]

    def _tables(self):
        """Return the embeddings of the prefix tokens (or None), and the embeddings of the grid, `[1, h, w, D]`."""
        height, width = self._table_grid
        if self.kind == "sincos2d":
            return None, np.reshape(self._fixed_table, (1, height, width, -1))
        if self.kind == "learned2d":
            prefix = self.pos_embedding_prefix if self.num_prefix_tokens else None
            return prefix, _side_by_side(self.pos_embedding_x, self.pos_embedding_y, height, width)
        table = self.pos_embedding
        split = self.num_prefix_tokens
        prefix = table[:, :split] if split else None
        return prefix, ops.reshape(table[:, split:] if split else table, (1, height, width, table.shape[-1]))

    def _resized(self, grid, new_grid):
        if self.kind != "sincos2d":
            return resize_table(grid, new_grid, self.method)
        # Fixed embeddings are computed for the new rows and columns instead of interpolated.
        rows, columns = (_sincos_1d(size, grid.shape[-1] // 2) for size in new_grid)
        return _side_by_side(columns, rows, *new_grid)

    def compute_output_shape(self, x_shape: Shape, patches_shape: Shape | None = None) -> Shape:
        return x_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class FixedPositionEmbs(AddPositionEmbs):
    """Addition of fixed position embeddings, stored in a non-trainable table.

    The initial table is `sincos_2d_table` with `endpoint=False`, and zeros for the prefix tokens. Checkpoints contain
    the table, so that a model of another resolution can resize it.

    Args:
        grid: (height, width) of the patch grid.
        num_prefix_tokens: Number of tokens before the patches. Their embeddings are zeros.

    Call arguments:
        x: Tensor `[B, prefix + h*w, D]`.

    Example:
    >>> tuple(FixedPositionEmbs(grid=(2, 3), num_prefix_tokens=1)(np.ones((1, 7, 8), "float32")).shape)
    (1, 7, 8)
    """

    is_embedding = _is_trained = False

    def __init__(self, grid: int | tuple[int, int], num_prefix_tokens: int = 0, **kwargs: Any):
        super().__init__(grid, num_prefix_tokens=num_prefix_tokens, **kwargs)

    def _initializer(self):
        height, width = self._table_grid

        def initialize(shape, dtype):
            table = np.zeros(shape, "float32")
            table[:, self.num_prefix_tokens :] = sincos_2d_table(height, width, shape[-1], endpoint=False)
            return ops.cast(table, dtype)

        return initialize
