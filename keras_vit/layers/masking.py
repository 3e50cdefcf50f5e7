"""Layers for masked image modeling, which remove, restore or corrupt patches."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.base import BaseLayer, Shape
from keras_vit.util import checks

__all__ = ["CorruptedPatches", "RestoredPatches", "VisiblePatches"]


def take_patches(patches: Any, sources: Any) -> Any:
    """Gather the patches `[B, N, D]` at the indices `sources` `[B, M]`. A negative index gives zeros."""
    # The product with a one-hot matrix is exact, deterministic, and fast on devices with slow gathers.
    selection = ops.one_hot(sources, patches.shape[1], dtype=patches.dtype)  # [B, M, N]
    return ops.matmul(selection, patches)  # [B, M, D]


@keras.saving.register_keras_serializable(package="keras_vit")
class VisiblePatches(BaseLayer):
    """Selection of the visible patches: `[B, prefix + N, D]` to `[B, prefix + num_visible, D]`.

    Args:
        num_visible: Number of patches to keep.
        num_prefix_tokens: Number of tokens before the patches. These tokens are kept.

    Call arguments:
        x: Tensor `[B, prefix + N, D]`.
        order: Integers `[B, N]`, the indices of each image's patches in random order. The result contains the first
            `num_visible` patches of this order.

    Example:
    >>> x = np.arange(4, dtype="float32").reshape(1, 4, 1)
    >>> np.array(VisiblePatches(2, num_prefix_tokens=1)(x, np.array([[2, 0, 1]]))).ravel().tolist()
    [0.0, 3.0, 1.0]
    """

    def __init__(self, num_visible: int, num_prefix_tokens: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_visible = checks.positive_int("num_visible", num_visible)
        self.num_prefix_tokens = checks.positive_int("num_prefix_tokens", num_prefix_tokens, minimum=0)

    def call(self, x: Any, order: Any) -> Any:
        prefix, patches = x[:, : self.num_prefix_tokens], x[:, self.num_prefix_tokens :]
        visible = take_patches(patches, order[:, : self.num_visible])  # [B, K, D]
        return ops.concatenate([prefix, visible], axis=1)

    def compute_output_shape(self, x_shape: Shape, order_shape: Shape) -> Shape:
        return (x_shape[0], self.num_prefix_tokens + self.num_visible, x_shape[-1])


class _WithMaskToken(BaseLayer):
    """Layer with a learned token that replaces masked patches."""

    def _add_token(self, hidden_size):
        # Name the variable after the layer, as for the other learned tokens.
        self.mask_token = self.add_weight(
            name=self.name,
            shape=(1, 1, hidden_size),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )

    def _take(self, patches, sources):
        """Gather patches at the indices `sources`. A negative index gives the mask token."""
        masked = ops.cast(sources < 0, patches.dtype)[:, :, None]  # [B, M, 1]
        return take_patches(patches, sources) + masked * ops.cast(self.mask_token, patches.dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class RestoredPatches(_WithMaskToken):
    """Inverse of `VisiblePatches`: all patches in raster order, with a mask token for each masked patch.

    Args:
        num_prefix_tokens: Number of tokens before the patches. These tokens are kept.

    Call arguments:
        x: Tensor `[B, prefix + K, D]` in the order of the output of `VisiblePatches`.
        order: The `order` `[B, N]` passed to `VisiblePatches`. The result is `[B, prefix + N, D]`.

    Example:
    >>> layer = RestoredPatches(num_prefix_tokens=1)
    >>> tuple(layer(np.ones((2, 3, 8), "float32"), np.array([[3, 0, 1, 2]] * 2)).shape)
    (2, 5, 8)
    """

    def __init__(self, num_prefix_tokens: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_prefix_tokens = checks.positive_int("num_prefix_tokens", num_prefix_tokens, minimum=0)

    def build(self, x_shape: Shape, order_shape: Shape) -> None:
        self._add_token(x_shape[-1])
        super().build(x_shape)

    def call(self, x: Any, order: Any) -> Any:
        prefix, visible = x[:, : self.num_prefix_tokens], x[:, self.num_prefix_tokens :]
        positions = ops.argsort(order, axis=1)  # [B, N]: position of each patch in the random order
        patches = self._take(visible, ops.where(positions < visible.shape[1], positions, -1))  # [B, N, D]
        return ops.concatenate([prefix, patches], axis=1)

    def compute_output_shape(self, x_shape: Shape, order_shape: Shape) -> Shape:
        return (x_shape[0], self.num_prefix_tokens + order_shape[1], x_shape[-1])


@keras.saving.register_keras_serializable(package="keras_vit")
class CorruptedPatches(_WithMaskToken):
    """Replacement of some patch embeddings by a mask token or by the embedding of another patch.

    Call arguments:
        patches: Tensor `[B, N, D]`.
        sources: Integers `[B, N]`: the index of the embedding to use for each patch, or -1 for the mask token.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), appendix B.1.2

    Example:
    >>> tuple(CorruptedPatches()(np.ones((1, 3, 8), "float32"), np.array([[0, -1, 0]])).shape)
    (1, 3, 8)
    """

    def build(self, patches_shape: Shape, sources_shape: Shape) -> None:
        self._add_token(patches_shape[-1])
        super().build(patches_shape)

    def call(self, patches: Any, sources: Any) -> Any:
        return self._take(patches, sources)

    def compute_output_shape(self, patches_shape: Shape, sources_shape: Shape) -> Shape:
        return patches_shape
