"""Groups of weights: those that decay, those that are trained, and the learning rate of each layer.

Layers declare what they are: `is_block` (a block of an encoder, a unit of a ResNet) and `is_embedding` (patches,
tokens, positions). A layer's `kernel` decays; biases, norms, tokens and positions do not.
"""

import re
from collections.abc import Iterator

import keras


def decayed(model: keras.Model, mask: str | None = None) -> set[str]:
    """Return the paths of the weights that decay.

    Args:
        model: The model.
        mask: Regular expression for their paths, or None for the kernels.

    Example:
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="head")])
    >>> decayed(model), sorted(decayed(model, "head"))
    ({'head/kernel'}, ['head/bias', 'head/kernel'])
    """
    weights = model.trainable_weights
    if mask is not None:
        return {weight.path for weight in weights if re.search(mask, weight.path)}
    kernels = {id(getattr(layer, "kernel", None)) for layer in model._flatten_layers()}
    return {weight.path for weight in weights if id(weight) in kernels}


def block_matrices(model: keras.Model) -> dict[str, int]:
    """Return the paths of the kernels of all blocks, with the number of their leading axes that are inputs.

    These are the matrices that `Muon` updates. Embeddings, the root of a ResNet and the head are not in blocks.

    Example:
    >>> model = keras_vit.VisionTransformer(8, 32, 2, 2, 64, image_size=32, classes=10)
    >>> found = block_matrices(model)
    >>> found["encoderblock_0/MultiHeadDotProductAttention_0/query/kernel"]  # [width, heads, head width]
    1
    >>> found["encoderblock_0/MultiHeadDotProductAttention_0/out/kernel"]  # [heads, head width, width]
    2
    >>> "head/kernel" in found
    False
    """
    found = {}
    for block in (layer for layer in model._flatten_layers() if getattr(layer, "is_block", False)):
        for layer in block._flatten_layers():
            kernel = getattr(layer, "kernel", None)
            if kernel is not None:
                found[kernel.path] = _input_axes(layer)
    return found


def _input_axes(layer: keras.layers.Layer) -> int:
    if isinstance(layer, keras.layers.EinsumDense):
        inputs, kernel = layer.equation.split("->")[0].split(",")
        return sum(axis in inputs for axis in kernel)
    return len(layer.kernel.shape) - 1


def trained(model: keras.Model, frozen: str = "") -> list[str]:
    """Return the paths of the weights that are trained: all, or those where the expression `frozen` is not found.

    Example:
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="head")])
    >>> trained(model, frozen="bias")
    ['head/kernel']
    """
    paths = [weight.path for weight in model.trainable_weights]
    return [path for path in paths if not re.search(frozen, path)] if frozen else paths


def layer_multipliers(model: keras.Model, decay: float) -> dict[str, float]:
    """Return a factor on the learning rate of each weight by its path, smaller the further it is from the head.

    Depth 0 holds embeddings and all that comes before the first block; each block is one deeper than the one before;
    everything else (final norm, pooling, head) is the deepest.

    Args:
        model: The model.
        decay: Factor per layer; 1 leaves every rate as it is.

    Returns:
        `decay ** (largest depth - depth)` for each path.

    References:
        - [BEiT](https://arxiv.org/abs/2106.08254), appendix on fine-tuning

    Example:
    >>> model = keras_vit.VisionTransformer(8, 32, 2, 2, 64, image_size=32, classes=10)
    >>> multipliers = layer_multipliers(model, decay=0.5)
    >>> multipliers["embedding/kernel"], multipliers["head/kernel"]
    (0.125, 1.0)
    """
    parts = list(_parts(model))
    blocks = [index for index, part in enumerate(parts) if getattr(part, "is_block", False)]
    deepest = len(blocks) + 1
    depths = {weight.path: deepest for weight in model.trainable_weights}
    for index, part in enumerate(parts):
        if index in blocks:
            depth = 1 + blocks.index(index)
        elif getattr(part, "is_embedding", False) or (blocks and index < blocks[0]):
            depth = 0
        else:
            depth = deepest
        depths |= {weight.path: depth for weight in part.trainable_weights}
    return {path: decay ** (deepest - depth) for path, depth in depths.items()}


def _parts(layer: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    """Yield blocks, and the layers that neither are nor hold a block, in the order of the model."""
    inner = list(layer._flatten_layers(include_self=False))
    if not getattr(layer, "is_block", False) and any(getattr(part, "is_block", False) for part in inner):
        for child in layer._flatten_layers(recursive=False, include_self=False):
            yield from _parts(child)
    else:
        yield layer
