"""Rematerialization: the backward pass recomputes activations instead of saving them."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from keras_vit.layers.keras_private import all_layers


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
