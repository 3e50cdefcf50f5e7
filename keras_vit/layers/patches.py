"""Patch embeddings of images."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.base import BaseLayer, Shape
from keras_vit.layers.normalization import LayerNorm
from keras_vit.util import checks

__all__ = ["FlattenGrid", "PatchEncoder", "UnflattenGrid"]


def flatten_grid(grid: Any) -> Any:
    """Reshape `[B, h, w, D]` to `[B, h*w, D]` in raster order. The static shape of the grid may be unknown."""
    _, height, width, hidden_size = grid.shape
    if height is None or width is None:
        shape = ops.shape(grid)
        return ops.reshape(grid, (shape[0], shape[1] * shape[2], hidden_size))  # [B, h*w, D]
    return ops.reshape(grid, (-1, height * width, hidden_size))  # [B, h*w, D]


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchEncoder(BaseLayer):
    """Linear projection of the patches of an image to embeddings.

    The layer is a convolution whose stride equals its kernel size, which is equivalent to flattening each patch and
    multiplying it by a matrix. Height and width of the image must be multiples of the patch size.

    Args:
        patch_size: Size of a patch in pixels, an integer or (height, width).
        hidden_size: Width `D` of the embeddings.
        flatten: Whether to return a sequence in raster order `[B, h*w, D]` instead of a grid `[B, h, w, D]`.
        use_bias: Whether the projection has a bias.
        norm_epsilon: Epsilon of the layer norms before and after the projection, or None to omit the norms.

    Call arguments:
        images: Float tensor `[B, height, width, channels]`.

    Raises:
        ValueError: If the height or width of the image is not a multiple of the patch size.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), section 3.1

    Example:
    >>> tuple(PatchEncoder(patch_size=4, hidden_size=16)(np.ones((1, 8, 8, 3), "float32")).shape)
    (1, 4, 16)
    """

    is_embedding = True

    def __init__(
        self,
        patch_size: int | tuple[int, int],
        hidden_size: int,
        flatten: bool = True,
        use_bias: bool = True,
        norm_epsilon: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.patch_size = checks.size_pair("patch_size", patch_size)
        self.hidden_size = checks.positive_int("hidden_size", hidden_size)
        self.flatten = flatten
        self.use_bias = use_bias
        self.norm_epsilon = None if norm_epsilon is None else float(norm_epsilon)
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build(self, input_shape: Shape) -> None:
        self._check_size(input_shape)
        if input_shape[-1] is None:
            raise ValueError(f"PatchEncoder needs a number of channels. Received: input_shape={tuple(input_shape)}.")
        self.kernel = self.add_weight(
            name="kernel", shape=(*self.patch_size, input_shape[-1], self.hidden_size), initializer="lecun_normal"
        )
        self.bias = (
            self.add_weight(name="bias", shape=(self.hidden_size,), initializer="zeros") if self.use_bias else None
        )
        if self.norm_epsilon is not None:
            pixels = self.patch_size[0] * self.patch_size[1] * input_shape[-1]
            self.norm_0 = LayerNorm(self.norm_epsilon, dtype=self.dtype_policy, name="LayerNorm_0")
            self.norm_0.build((None, None, None, pixels))
            self.norm_1 = LayerNorm(self.norm_epsilon, dtype=self.dtype_policy, name="LayerNorm_1")
            self.norm_1.build((None, None, None, self.hidden_size))
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={-1: input_shape[-1]})
        super().build(input_shape)

    def _check_size(self, input_shape):
        _, height, width, _ = input_shape
        for size, patch in zip((height, width), self.patch_size, strict=True):
            if size is not None and (size % patch or size < patch):
                raise ValueError(
                    f"The image must be a whole number of patches of {self.patch_size} in both dimensions. "
                    f"Received: (height, width)=({height}, {width}). Resize or crop the image to a multiple."
                )

    def call(self, images: Any) -> Any:
        self._check_size(images.shape)
        x = self._project(images) if self.norm_epsilon is None else self._project_normalized(images)
        if self.use_bias:
            x = x + self.bias
        if self.norm_epsilon is not None:
            x = self.norm_1(x)
        return flatten_grid(x) if self.flatten else x

    def _project(self, images: Any) -> Any:
        # [B, height, width, C] -> [B, h, w, D]
        return ops.conv(images, self.kernel, strides=self.patch_size, padding="valid", data_format="channels_last")

    def _project_normalized(self, images: Any) -> Any:
        rows, columns = self.patch_size
        height, width = (ops.shape(images)[axis] for axis in (1, 2))
        pixels = rows * columns * images.shape[-1]
        x = ops.reshape(images, (-1, rows, width // columns, columns * images.shape[-1]))  # [B*h, p, w, q*C]
        x = ops.transpose(x, (0, 2, 1, 3))  # [B*h, w, p, q*C]
        x = self.norm_0(ops.reshape(x, (-1, height // rows, width // columns, pixels)))  # [B, h, w, p*q*C]
        return ops.matmul(x, ops.reshape(self.kernel, (pixels, self.hidden_size)))  # [B, h, w, D]

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        self._check_size(input_shape)
        batch, height, width, _ = input_shape
        rows, columns = (
            None if size is None else size // patch
            for size, patch in zip((height, width), self.patch_size, strict=True)
        )
        if not self.flatten:
            return (batch, rows, columns, self.hidden_size)
        return (batch, None if rows is None or columns is None else rows * columns, self.hidden_size)


@keras.saving.register_keras_serializable(package="keras_vit")
class FlattenGrid(BaseLayer):
    """Reshaping of a grid of embeddings `[B, h, w, D]` to a sequence `[B, h*w, D]` in raster order.

    Example:
    >>> tuple(FlattenGrid()(np.ones((1, 2, 3, 8), "float32")).shape)
    (1, 6, 8)
    """

    def call(self, grid: Any) -> Any:
        return flatten_grid(grid)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, height, width, hidden_size = input_shape
        return (batch, None if height is None or width is None else height * width, hidden_size)


@keras.saving.register_keras_serializable(package="keras_vit")
class UnflattenGrid(BaseLayer):
    """Reshaping of the patches of a sequence `[B, prefix + h*w, D]` to a grid `[B, h, w, D]`.

    Args:
        num_prefix_tokens: Number of tokens to drop before the patches.

    Call arguments:
        x: Tensor `[B, prefix + h*w, D]`.
        grid: Tensor `[B, h, w, ...]` with the height and width of the result.

    Example:
    >>> tuple(UnflattenGrid(num_prefix_tokens=1)(np.ones((1, 7, 8)), np.ones((1, 2, 3, 8))).shape)
    (1, 2, 3, 8)
    """

    def __init__(self, num_prefix_tokens: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_prefix_tokens = checks.positive_int("num_prefix_tokens", num_prefix_tokens, minimum=0)

    def call(self, x: Any, grid: Any) -> Any:
        static, dynamic = grid.shape, ops.shape(grid)
        height, width = (dynamic[axis] if static[axis] is None else static[axis] for axis in (1, 2))
        return ops.reshape(x[:, self.num_prefix_tokens :], (-1, height, width, x.shape[-1]))  # [B, h, w, D]

    def compute_output_shape(self, x_shape: Shape, grid_shape: Shape) -> Shape:
        return (x_shape[0], *grid_shape[1:3], x_shape[-1])
