"""The depth of each weight of a model, counted in blocks from the images."""

from collections.abc import Iterator

import keras


def depths(model: keras.Model) -> tuple[dict[str, int], int]:
    """Return the depth of each weight by its path, and the largest depth, which is the number of blocks plus one.

    Depth 0 has embeddings and all that comes before the first block; each block is one deeper than the one before;
    everything else (final norm, pooling, head) is the deepest.
    """
    parts = list(_parts(model))
    blocks = [index for index, part in enumerate(parts) if getattr(part, "is_block", False)]
    deepest = len(blocks) + 1
    found = {weight.path: deepest for weight in model.weights}
    for index, part in enumerate(parts):
        if index in blocks:
            depth = 1 + blocks.index(index)
        elif getattr(part, "is_embedding", False) or (blocks and index < blocks[0]):
            depth = 0
        else:
            depth = deepest
        found |= {weight.path: depth for weight in part.weights}
    return found, deepest


def _parts(layer: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    """Yield blocks, and the layers that neither are nor hold a block, in the order of the model."""
    inner = list(layer._flatten_layers(include_self=False))
    if not getattr(layer, "is_block", False) and any(getattr(part, "is_block", False) for part in inner):
        for child in layer._flatten_layers(recursive=False, include_self=False):
            yield from _parts(child)
    else:
        yield layer
