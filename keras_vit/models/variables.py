"""The variables of a model by their role in training and by their depth.

Layers declare their role with `is_block` (a block of an encoder, a unit of a ResNet) and `is_embedding` (patches,
tokens, positions). Weights named `kernel` and the factors of LoRA decay. Biases, norms, tokens and positions do not
decay.
"""

import re
from collections.abc import Iterator

import keras

from keras_vit.layers.keras_private import all_layers, direct_sublayers

_STATE = "seed_generator_state"
_DECAYED = ("kernel", "lora_kernel_a", "lora_kernel_b")


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


def decayed(model: keras.Model, mask: str | None = None) -> set[str]:
    """Return the paths of the weights that decay: those that match `mask`, or the kernels and the factors of LoRA."""
    weights = model.trainable_weights
    if mask is not None:
        return {weight.path for weight in weights if re.search(mask, weight.path)}
    return {weight.path for weight in weights if weight.name in _DECAYED}


def block_matrices(model: keras.Model) -> dict[str, int]:
    """Return the number of leading input axes of each kernel that `Muon` updates (those in blocks), by path."""
    found: dict[str, int] = {}
    for block in (layer for layer in all_layers(model) if getattr(layer, "is_block", False)):
        for layer in all_layers(block):  # a layer comes after the layers that contain it
            kernels = [weight for weight in layer.trainable_weights if weight.name == "kernel"]
            found |= {kernel.path: _input_axes(layer, kernel) for kernel in kernels}
    return found


def _input_axes(layer: keras.layers.Layer, kernel: keras.Variable) -> int:
    if isinstance(layer, keras.layers.EinsumDense):
        inputs, axes = layer.equation.split("->")[0].split(",")
        return sum(axis in inputs for axis in axes)
    return len(kernel.shape) - 1


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


def layer_multipliers(model: keras.Model, decay: float) -> dict[str, float]:
    """Return `decay ** (largest depth - depth)`, the factor on the learning rate, by the path of each weight.

    References:
        - [BEiT](https://arxiv.org/abs/2106.08254), appendix on fine-tuning
    """
    found, deepest = depths(model)
    return {weight.path: decay ** (deepest - found[weight.path]) for weight in model.trainable_weights}
