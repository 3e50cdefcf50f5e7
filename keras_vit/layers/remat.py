"""Rematerialization: the backward pass recomputes activations instead of saving them."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras


class ReplayableSeedGenerator(keras.random.SeedGenerator):
    """Seed generator that can return the same seed more than once."""

    _replayed = None

    def next(self, ordered: bool = True) -> Any:
        """Return the next seed, or the one that is replayed."""
        return super().next(ordered) if self._replayed is None else self._replayed


@contextlib.contextmanager
def replay(generators: Sequence[ReplayableSeedGenerator], seeds: Sequence[Any]) -> Iterator[None]:
    """Make each generator return its entry of `seeds` within a `with` block, however often it is asked."""
    for generator, seed in zip(generators, seeds, strict=True):
        generator._replayed = seed
    try:
        yield
    finally:
        for generator in generators:
            generator._replayed = None


def rematerialized(layer: keras.layers.Layer, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a layer's `call`, recomputed from its inputs in the backward pass. Both runs drop the same values."""

    def run(*args, **kwargs):
        # The seeds are drawn here, outside of what runs twice.
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
    parts = layer._flatten_layers()
    found = [getattr(part, "seed_generator", None) for part in parts]
    return [generator for generator in found if isinstance(generator, ReplayableSeedGenerator)]
