"""Dropout and stochastic depth, and rematerialization that repeats their random numbers."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers.base import BaseLayer, Shape
from keras_vit.layers.keras_private import all_layers
from keras_vit.util import checks


class ReplayableSeedGenerator(keras.random.SeedGenerator):
    """Seed generator that can repeat a seed."""

    _replayed = None

    def next(self, ordered: bool = True) -> Any:
        """Return the replayed seed within `replay`, and the next seed otherwise."""
        return super().next(ordered) if self._replayed is None else self._replayed


@contextlib.contextmanager
def replay(generators: Sequence[ReplayableSeedGenerator], seeds: Sequence[Any]) -> Iterator[None]:
    """Make each generator return its entry of `seeds` for every call within a `with` block."""
    for generator, seed in zip(generators, seeds, strict=True):
        generator._replayed = seed
    try:
        yield
    finally:
        for generator in generators:
            generator._replayed = None


def rematerialized(layer: keras.layers.Layer, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a layer's `call`, so that the backward pass recomputes the call from its inputs, with the same dropout."""

    def run(*args, **kwargs):
        # Draw the seeds outside the recomputed function, which runs twice.
        generators = _seed_generators(layer)
        seeds = [generator.next() for generator in generators]
        names = [name for name, value in kwargs.items() if keras.ops.is_tensor(value)]
        tensors = [*args, *(kwargs.pop(name) for name in names)]

        def forward(*tensors):
            with replay(generators, seeds):
                return call(*tensors[: len(args)], **dict(zip(names, tensors[len(args) :], strict=True)), **kwargs)

        return keras.remat(forward)(*tensors)

    return run


def _seed_generators(layer: keras.layers.Layer) -> list[ReplayableSeedGenerator]:
    """Return the seed generators of a layer and its sublayers, in the order of their creation."""
    found = [getattr(part, "seed_generator", None) for part in all_layers(layer)]
    return [generator for generator in found if isinstance(generator, ReplayableSeedGenerator)]


__all__ = ["Dropout", "StochasticDepth"]


@keras.saving.register_keras_serializable(package="keras_vit")
class Dropout(BaseLayer):
    """Dropout: during training, random values are set to zero and the others are scaled up.

    Args:
        rate: Probability in [0, 1) of dropping a value.
        seed: Integer or None.

    Call arguments:
        x: Tensor of any shape.
        training: Whether to apply dropout. If False, the layer returns its input.

    References:
        - [Dropout](https://www.jmlr.org/papers/v15/srivastava14a.html)

    Example:
    >>> np.array(Dropout(0.5)(np.ones(3, "float32"))).tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.rate = checks.rate("rate", rate)
        self.seed = seed
        self.seed_generator = ReplayableSeedGenerator(seed) if self.rate > 0 else None

    def call(self, x: Any, training: bool = False) -> Any:
        if not training or self.seed_generator is None:
            return x
        return keras.random.dropout(x, self.rate, seed=self.seed_generator)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class StochasticDepth(Dropout):
    """Dropout of a whole residual branch, independently for each example.

    The remaining branches are divided by `1 - rate`, so that the expected value is unchanged.

    Args:
        rate: Probability in [0, 1) of dropping an example's branch.
        seed: Integer or None.

    Call arguments:
        x: Tensor `[B, ...]`, the output of the branch before the addition.
        training: Whether to drop branches. If False, the layer returns its input.

    References:
        - [Deep Networks with Stochastic Depth](https://arxiv.org/abs/1603.09382)

    Example:
    >>> branch = np.ones((4, 2), "float32")
    >>> tuple(StochasticDepth(0.1)(branch, training=True).shape)
    (4, 2)
    """

    def call(self, x: Any, training: bool = False) -> Any:
        if not training or self.seed_generator is None:
            return x
        shape = (ops.shape(x)[0],) + (1,) * (len(x.shape) - 1)
        kept = keras.random.uniform(shape, seed=self.seed_generator, dtype="float32") >= self.rate
        return x * (ops.cast(kept, x.dtype) / ops.cast(1.0 - self.rate, x.dtype))
