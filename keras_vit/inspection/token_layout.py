"""Layout of the tokens: prefix tokens, patches, and the tokens that the head reads."""

import dataclasses
from typing import Any

import numpy as np

from keras_vit.layers import MAPHead, PatchEncoder, PatchMeanPooling, TokenPooling

TOKENS, PATCHES, PROBE = "tokens", "patches", "probe"


@dataclasses.dataclass(frozen=True)
class TokenLayout:
    """The order of a model's tokens, `[prefix tokens, registers, patches]`.

    Attributes:
        grid: Rows and columns of the patches.
        num_prefix_tokens: Number of tokens before the patches (class token, distillation token, registers).
        reads: Input of the head: `"tokens"` (the tokens in `read_tokens`), `"patches"` (the mean of the patches) or
            `"probe"` (the result of attention pooling).
        read_tokens: Positions of the tokens that the head reads, if `reads` is `"tokens"`.

    Example:
    >>> layout = attention_maps(model, images).layout
    >>> layout.grid, layout.num_prefix_tokens, layout.reads, layout.read_tokens
    ((4, 4), 1, 'tokens', (0,))
    """

    grid: tuple[int, int]
    num_prefix_tokens: int
    reads: str
    read_tokens: tuple[int, ...] = ()

    def to_grid(self, weights: np.ndarray) -> np.ndarray:
        """Return the entries of the patches in `[..., N]` as a grid `[..., h, w]`."""
        patches = weights[..., self.num_prefix_tokens :]
        return patches.reshape(*weights.shape[:-1], *self.grid)

    def output_row(self, matrix: np.ndarray, probe: np.ndarray | None = None) -> np.ndarray:
        """Return the weight of each token in the output, `[..., N]`.

        Args:
            matrix: `[..., N, N]`: row n contains the weight of each input token in output token n.
            probe: Weights of attention pooling, `[B, N]`. If None, the rows of the patches are averaged.
        """
        if self.reads == TOKENS:
            return matrix[..., list(self.read_tokens), :].mean(axis=-2)
        if self.reads == PROBE and probe is not None:
            return np.einsum("bm,b...mn->b...n", probe, matrix)
        return matrix[..., self.num_prefix_tokens :, :].mean(axis=-2)


class LayoutRecorder:
    """Recorder that infers the token layout from the layers as they run."""

    def __init__(self):
        self.grid: tuple[int, int] | None = None
        self.length: int | None = None
        self._reads: list[Any] = []

    def see(self, layer: Any, inputs: Any) -> None:
        """Record a layer that has run."""
        if isinstance(layer, PatchEncoder):
            shape, patch = inputs.shape, layer.patch_size
            self.grid = (int(shape[1]) // patch[0], int(shape[2]) // patch[1])
        elif isinstance(layer, TokenPooling):
            self._reads.append(layer.index)
        elif isinstance(layer, MAPHead):
            self._reads.append(PROBE)
        elif isinstance(layer, PatchMeanPooling):
            prefix = int(inputs.shape[1]) - (self.grid[0] * self.grid[1] if self.grid else 0)
            # The mean is either over all tokens or only over the patches.
            self._reads += range(int(inputs.shape[1])) if prefix and not layer.num_prefix_tokens else [PATCHES]

    def layout(self) -> TokenLayout:
        """Return the token layout. Raises a ValueError unless a patch embedding and an encoder block have run."""
        if self.grid is None or self.length is None:
            raise ValueError(
                "The model has no patch embedding followed by encoder blocks, so it has no attention. Pass a "
                "VisionTransformer or a model that contains one."
            )
        prefix = self.length - self.grid[0] * self.grid[1]
        tokens = tuple(sorted(index for index in self._reads if isinstance(index, int)))
        if tokens:
            return TokenLayout(self.grid, prefix, TOKENS, tokens)
        if self._reads:
            return TokenLayout(self.grid, prefix, self._reads[-1])
        # The model returns all tokens. The class token, if there is one, represents the image.
        return TokenLayout(self.grid, prefix, TOKENS, (0,)) if prefix else TokenLayout(self.grid, 0, PATCHES)
