"""Rotary position embeddings: the angles by which attention rotates the queries and keys of the patches."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.base import BaseLayer, Shape
from keras_vit.layers.dropout import ReplayableSeedGenerator
from keras_vit.util import checks

__all__ = ["RotaryPositions"]


def ratio(name: str, value: Any) -> float:
    """Return `value` as a float after checking that the number is finite and at least 1."""
    if checks.finite_number(name, value) < 1:
        raise ValueError(f"`{name}` must be a number of at least 1, or None. Received: {name}={value!r}.")
    return float(value)


@keras.saving.register_keras_serializable(package="keras_vit")
class RotaryPositions(BaseLayer):
    """DINOv3's 2-D RoPE: the angles by which `SelfAttention` rotates the queries and keys of each patch.

    Row and column coordinates are in (-1, 1) for grids of every size. Channel i of an attention head is paired with
    channel i + K/2, and both are rotated by the same angle. The angle depends on the row or on the column:

        channel    0 ... K/4-1    K/4 ... K/2-1    K/2 ... 3K/4-1    3K/4 ... K-1
        angle of   row            column           row               column

    Tokens before the patches are not rotated.

    Args:
        head_dim: Width `K` of an attention head, a multiple of 4.
        num_prefix_tokens: Number of tokens before the patches (class token, registers).
        base: Ratio of the periods' upper bound to the shortest period. All periods are below the upper bound.
        shift: During training, each coordinate is shifted by a random number in [-shift, shift]. None disables the
            shift.
        jitter: During training, each coordinate is multiplied by a random number in [1 / jitter, jitter]. None disables
            jitter.
        rescale: During training, both coordinates are multiplied by the same random number in [1 / rescale, rescale].
            None disables rescaling.
        seed: Integer or None.

    Call arguments:
        patches: Tensor `[B, h, w, ...]`, of which only the grid (h, w) is used. The result `[2, prefix + h*w, K]`
            contains cosines and sines.
        training: Whether to change the coordinates at random, in the same way for all images.

    Raises:
        ValueError: If `head_dim` is not a multiple of 4, or `base`, `shift`, `jitter` or `rescale` is out of range.

    References:
        - [DINOv3](https://arxiv.org/abs/2508.10104)
        - [RoFormer](https://arxiv.org/abs/2104.09864)

    Example:
    >>> tuple(RotaryPositions(head_dim=8, num_prefix_tokens=1)(np.ones((1, 2, 3, 16), "float32")).shape)
    (2, 7, 8)
    """

    def __init__(
        self,
        head_dim: int,
        num_prefix_tokens: int = 0,
        base: float = 100.0,
        shift: float | None = None,
        jitter: float | None = None,
        rescale: float | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.head_dim = checks.divisible("head_dim", checks.positive_int("head_dim", head_dim), "rotated quarters", 4)
        self.num_prefix_tokens = checks.positive_int("num_prefix_tokens", num_prefix_tokens, minimum=0)
        self.base = checks.finite_number("base", base)
        self.shift = None if shift is None else checks.finite_number("shift", shift, zero=True)
        self.jitter = None if jitter is None else ratio("jitter", jitter)
        self.rescale = None if rescale is None else ratio("rescale", rescale)
        self.seed = seed
        if (shift, jitter, rescale) != (None, None, None):
            self.seed_generator = ReplayableSeedGenerator(seed)

    def call(self, patches: Any, training: bool = False) -> Any:
        static, dynamic = patches.shape, ops.shape(patches)
        sizes = [dynamic[axis] if static[axis] is None else static[axis] for axis in (1, 2)]
        y, x = ((2.0 * ops.cast(ops.arange(size), "float32") + 1.0) / ops.cast(size, "float32") - 1.0 for size in sizes)
        if training and hasattr(self, "seed_generator"):
            y, x = self._changed(y, x)
        quarter = self.head_dim // 4
        periods = self.base ** (np.arange(quarter) / (2 * quarter) * 2)
        rows, columns = (ops.outer(axis, (2 * np.pi / periods).astype("float32")) for axis in (y, x))  # [h, K/4]
        shape = (*sizes, quarter)
        angles = [ops.broadcast_to(rows[:, None], shape), ops.broadcast_to(columns[None], shape)] * 2
        angles = ops.reshape(ops.concatenate(angles, axis=-1), (-1, self.head_dim))  # [h*w, K]
        angles = ops.pad(angles, ((self.num_prefix_tokens, 0), (0, 0)))
        return ops.cast(ops.stack([ops.cos(angles), ops.sin(angles)]), self.compute_dtype)

    def _changed(self, y, x):
        """Return the coordinates after shift, jitter and rescaling, in this order."""
        draw = keras.random.uniform((5,), -1.0, 1.0, dtype="float32", seed=self.seed_generator)
        rescale = math.log(self.rescale or 1.0) * draw[4]

        def change(positions, shift, jitter):
            factor = ops.exp(math.log(self.jitter or 1.0) * jitter + rescale)
            return (positions + (self.shift or 0.0) * shift) * factor

        return change(y, draw[0], draw[2]), change(x, draw[1], draw[3])

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        _, height, width, *_ = input_shape
        patches = None if height is None or width is None else height * width
        return (2, None if patches is None else self.num_prefix_tokens + patches, self.head_dim)
