"""Groups of weights: those that decay, those that are trained, and the learning rate of each layer.

Layers declare what they are: `is_block` (a block of an encoder, a unit of a ResNet) and `is_embedding` (patches,
tokens, positions). Weights named `kernel` and the factors of LoRA decay; biases, norms, tokens and positions do not.
"""

import re
from collections.abc import Iterator

import keras

_DECAYED = ("kernel", "lora_kernel_a", "lora_kernel_b")


def decayed(model: keras.Model, mask: str | None = None) -> set[str]:
    """Return the paths of the weights that decay.

    `mask` is a regular expression for their paths; None stands for the kernels and the factors of LoRA.
    """
    weights = model.trainable_weights
    if mask is not None:
        return {weight.path for weight in weights if re.search(mask, weight.path)}
    return {weight.path for weight in weights if weight.name in _DECAYED}


def block_matrices(model: keras.Model) -> dict[str, int]:
    """Return the paths of the trainable kernels of all blocks, with the number of their leading axes that are inputs.

    These are the matrices that `Muon` updates. Embeddings, the root of a ResNet and the head are not in blocks. The
    factors of LoRA are left to the other optimizer.
    """
    found: dict[str, int] = {}
    for block in (layer for layer in model._flatten_layers() if getattr(layer, "is_block", False)):
        for layer in block._flatten_layers():  # a layer follows those that it is within
            kernels = [weight for weight in layer.trainable_weights if weight.name == "kernel"]
            found |= {kernel.path: _input_axes(layer, kernel) for kernel in kernels}
    return found


def _input_axes(layer: keras.layers.Layer, kernel: keras.Variable) -> int:
    if isinstance(layer, keras.layers.EinsumDense):
        inputs, axes = layer.equation.split("->")[0].split(",")
        return sum(axis in inputs for axis in axes)
    return len(kernel.shape) - 1


def trained(model: keras.Model, frozen: str = "") -> list[str]:
    """Return the paths of the weights that are trained: all, or those where the expression `frozen` is not found."""
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
        depths |= {weight.path: depth for weight in part.weights if weight.trainable}  # a frozen part may hold LoRA
    return {path: decay ** (deepest - depth) for path, depth in depths.items()}


def _parts(layer: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    """Yield blocks, and the layers that neither are nor hold a block, in the order of the model."""
    inner = list(layer._flatten_layers(include_self=False))
    if not getattr(layer, "is_block", False) and any(getattr(part, "is_block", False) for part in inner):
        for child in layer._flatten_layers(recursive=False, include_self=False):
            yield from _parts(child)
    else:
        yield layer
