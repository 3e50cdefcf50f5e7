"""Groups of trainable weights: weight decay, and the learning rate of each layer.

Layers declare their role with `is_block` (a block of an encoder, a unit of a ResNet) and `is_embedding` (patches,
tokens, positions). Weights named `kernel` and the factors of LoRA decay. Biases, norms, tokens and positions do not
decay.
"""

import re

import keras

from keras_vit.layers.keras_private import all_layers
from keras_vit.models.variables import depths

_DECAYED = ("kernel", "lora_kernel_a", "lora_kernel_b")


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


def layer_multipliers(model: keras.Model, decay: float) -> dict[str, float]:
    """Return `decay ** (largest depth - depth)`, the factor on the learning rate, by the path of each weight.

    References:
        - [BEiT](https://arxiv.org/abs/2106.08254), appendix on fine-tuning
    """
    found, deepest = depths(model)
    return {weight.path: decay ** (deepest - found[weight.path]) for weight in model.trainable_weights}
