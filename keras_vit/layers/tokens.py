"""Learned tokens, added to the sequence of patches."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.base import BaseLayer, Shape
from keras_vit.util import checks

__all__ = ["ClassToken", "FirstTokens", "RegisterTokens"]


class _LearnedTokens(BaseLayer):
    """Insertion of `num_tokens` learned tokens after the first `position` tokens of a sequence `[B, N, D]`."""

    is_embedding = True
    num_tokens, position, _initializer = 1, 0, "zeros"

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, input_shape: Shape) -> None:
        # The variable has the layer's name because the reference stores `cls` at the top level.
        self.tokens = self.add_weight(
            name=self.name, shape=(1, self.num_tokens, input_shape[-1]), initializer=self._initializer
        )
        super().build(input_shape)

    def call(self, x: Any) -> Any:
        tokens = ops.cast(self.tokens, x.dtype)
        tokens = ops.broadcast_to(tokens, (ops.shape(x)[0], self.num_tokens, x.shape[-1]))  # [B, T, D]
        if self.position == 0:
            return ops.concatenate([tokens, x], axis=1)  # [B, T+N, D]
        return ops.concatenate([x[:, : self.position], tokens, x[:, self.position :]], axis=1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, length, hidden_size = input_shape
        return (batch, None if length is None else length + self.num_tokens, hidden_size)


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassToken(_LearnedTokens):
    """Learned class token at the beginning of a sequence, initialized to zeros.

    Call arguments:
        x: Tensor `[B, N, D]`; the result is `[B, 1+N, D]`.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), equation 1

    Example:
    >>> tuple(ClassToken()(np.ones((2, 4, 8), "float32")).shape)
    (2, 5, 8)
    """


@keras.saving.register_keras_serializable(package="keras_vit")
class RegisterTokens(_LearnedTokens):
    """Learned register tokens, inserted after the class token.

    Args:
        num_tokens: Number of registers.
        position: Number of tokens before the registers.

    Call arguments:
        x: Tensor `[B, N, D]`; the result is `[B, N+num_tokens, D]`.

    References:
        - [Vision Transformers Need Registers](https://arxiv.org/abs/2309.16588)

    Example:
    >>> tuple(RegisterTokens(num_tokens=4)(np.ones((2, 5, 8), "float32")).shape)
    (2, 9, 8)
    """

    def __init__(self, num_tokens: int, position: int = 1, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_tokens = checks.positive_int("num_tokens", num_tokens)
        self.position = checks.positive_int("position", position, minimum=0)
        self._initializer = keras.initializers.RandomNormal(stddev=0.02)


@keras.saving.register_keras_serializable(package="keras_vit")
class FirstTokens(BaseLayer):
    """Selection of the first tokens of a sequence: `[B, N, D]` to `[B, num_tokens, D]`.

    Args:
        num_tokens: Number of tokens to keep.

    Example:
    >>> tuple(FirstTokens(1)(np.ones((2, 5, 8), "float32")).shape)
    (2, 1, 8)
    """

    def __init__(self, num_tokens: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_tokens = checks.positive_int("num_tokens", num_tokens)

    def call(self, x: Any) -> Any:
        return x[:, : self.num_tokens]

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], self.num_tokens, input_shape[-1])
