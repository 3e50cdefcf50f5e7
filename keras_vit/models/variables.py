"""The variables of a model by their role in training and by their depth."""

from collections.abc import Iterator

import keras

from keras_vit.layers.keras_private import all_layers, direct_sublayers

_STATE = "seed_generator_state"


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """Return the state variables of all random generators in a model, in the order of its layers."""
    return [variable for variable in model.non_trainable_variables if variable.path.endswith(_STATE)]


def weights(model: keras.Model) -> list[keras.Variable]:
    """Return all variables of a model except the states of its random generators, which depend only on the step."""
    generators = {id(variable) for variable in seed_states(model)}
    return [variable for variable in model.variables if id(variable) not in generators]


def moving_statistics(model: keras.Model) -> list[keras.Variable]:
    """Return the moving statistics of batch norms, which a forward pass in training mode changes."""
    norms = [layer for layer in all_layers(model) if isinstance(layer, keras.layers.BatchNormalization)]
    return [variable for norm in norms if norm.trainable for variable in (norm.moving_mean, norm.moving_variance)]


def depths(model: keras.Model) -> tuple[dict[str, int], int]:
    """Return the depth of each weight by path, and the maximum depth (the number of blocks plus one).

    Embeddings and all layers before the first block have depth 0, and the blocks have depths 1, 2, ... All other layers
    (final norm, pooling, head) have the maximum depth.
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
    """Yield the blocks and all layers outside of blocks, in the order of the model."""
    inner = all_layers(layer)[1:]
    if not getattr(layer, "is_block", False) and any(getattr(part, "is_block", False) for part in inner):
        for child in direct_sublayers(layer):
            yield from _parts(child)
    else:
        yield layer
