"""Feature extractors: the input of the classification head, and the tokens of any block."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_vit import _checks
from keras_vit.layers import CorruptedPatches, PatchMeanPooling, TokenPooling, UnflattenGrid, VisiblePatches
from keras_vit.models.base import check_own
from keras_vit.models.masked import MaskedModel
from keras_vit.models.vit_config import ViTConfig


def encoder_outputs(model: keras.Model) -> dict[str, keras.KerasTensor]:
    """Return the symbolic output of each layer by its name; those of a pre-training model for whole images."""
    if not isinstance(model, MaskedModel):
        return {layer.name: layer.output for layer in model.layers}
    x, outputs = model.inputs[0], {}
    for layer in model.layers:  # a chain up to the last norm of the encoder
        if not isinstance(layer, (keras.layers.InputLayer, VisiblePatches, CorruptedPatches)):
            outputs[layer.name] = x = layer(x)
        if layer.name == "encoder_norm":
            break
    return outputs


def head_input(model: keras.Model) -> keras.KerasTensor:
    """Return the symbolic input of the layer `head`, or the mean of both inputs where there is a `head_dist`."""
    names = [name for name in ("head", "head_dist") if name in {layer.name for layer in model.layers}]
    heads = [model.get_layer(name) for name in names]
    inputs = [head.input for head in heads]
    return (
        inputs[0] if len(inputs) == 1 else keras.layers.Average(dtype=heads[0].compute_dtype, name="features")(inputs)
    )


def endings(model: keras.Model) -> list[Any]:
    """Return a model, the layer or operation that computes its output and, if that is a model, those inside of it.

    What follows them and changes no value, such as dropout, is passed over.
    """
    found: list[Any] = [model]
    while getattr(found[-1], "outputs", None):  # a functional or sequential model
        operations = keras.Model(found[-1].inputs, found[-1].outputs).operations
        found.append(next(operation for operation in reversed(operations) if not _changes_nothing(operation)))
    return found


def _changes_nothing(operation: Any) -> bool:
    is_linear = isinstance(operation, keras.layers.Activation) and activation_of(operation) == "linear"
    return is_linear or type(operation).__name__ in ("Cast", "Dropout", "Flatten", "Identity", "Reshape")


def activation_of(operation: Any) -> str:
    """Return the name of the activation of a layer, or of a layer or operation that is one, such as `Softmax`."""
    function = getattr(operation, "activation", None) or operation
    name = getattr(function, "__name__", type(function).__name__)
    return name.lower().removesuffix("_v2")  # TensorFlow's softmax is called softmax_v2


def representation(model: keras.Model) -> keras.Model:
    """Return a model of the same layers whose outputs are features and scores.

    Args:
        model: A model of this package, or any functional one whose classification layer is named `head`.

    Returns:
        A model from images to `[features, scores]`: the input of the head, float `[B, D]`, and the model's own output.
        A distilled model has two heads, and its features are the mean of their inputs, as with `include_top=False` and
        in timm. Both are the output of a model without a head. For a pre-training model, both are the output of its
        encoder for whole images.

    Example:
    >>> both = representation(keras_vit.ViT_Ti16(image_size=32, classes=10))
    >>> [tuple(output.shape) for output in both.outputs]
    [(None, 192), (None, 10)]
    """
    if isinstance(model, MaskedModel):
        config, tokens = model.config, encoder_outputs(model)["encoder_norm"]  # [B, prefix + N, D]
        pool = TokenPooling if config.class_token else PatchMeanPooling
        features = pool(0 if config.class_token else config.num_registers, dtype=model.dtype_policy)(tokens)
        return keras.Model(model.inputs[0], [features, features], name=f"{model.name}_representation")
    names = [layer.name for layer in model.layers]
    output = model.outputs[0]
    features = head_input(model) if "head" in names else output
    return keras.Model(model.inputs[0], [features, output], name=f"{model.name}_representation")


def features(model: keras.Model, blocks: Sequence[int] = (2, 5, 8, 11), norm: bool = True) -> keras.Model:
    """Return a model of the same layers whose outputs are the features of several blocks.

    Args:
        model: A `VisionTransformer`, plain or after a ResNet, or a pre-training model.
        blocks: Numbers of the blocks, from 0; negative ones count from the last block.
        norm: Whether the model's final norm is applied to the features. A model whose norm follows the pooling, or
            that has none, applies no norm.

    Returns:
        A functional model from images to a dictionary of lists with an entry per block: `"maps"`, the patches,
        `[B, h, w, D]`, and `"tokens"`, the class token, `[B, D]`, if the model has one. Registers are left out.

    Raises:
        ValueError: If the model is something else, or has no block of such a number.

    Example:
    >>> model = keras_vit.features(keras_vit.ViT_Ti16(image_size=32, classes=10), blocks=(5, -1))
    >>> {name: [tuple(output.shape) for output in outputs] for name, outputs in model.output.items()}
    {'maps': [(None, 2, 2, 192), (None, 2, 2, 192)], 'tokens': [(None, 192), (None, 192)]}
    """
    check_own(model)
    config = model.config
    if not isinstance(config, ViTConfig):
        raise ValueError(f"`model` must have encoder blocks. Received: {model.name!r}, a {type(model).__name__}.")
    numbers = _checks.sequence("blocks", blocks, "integers, such as (2, 5, 8, 11)")
    if not numbers or not all(number in range(-config.num_layers, config.num_layers) for number in numbers):
        raise ValueError(f"`blocks` must be numbers of the {config.num_layers} blocks. Received: blocks={blocks!r}.")
    outputs, shared = encoder_outputs(model), {"dtype": model.dtype_policy}
    final_norm = model.get_layer("encoder_norm") if norm and "encoder_norm" in outputs else None
    patch_map = UnflattenGrid(config.num_prefix_tokens + config.num_registers, name="patch_map", **shared)
    class_token = TokenPooling(0, name="class_token", **shared)
    found: dict[str, list[keras.KerasTensor]] = {"maps": [], "tokens": []}
    for number in numbers:
        tokens = outputs[f"encoderblock_{number % config.num_layers}"]  # [B, prefix + registers + h*w, D]
        tokens = tokens if final_norm is None else final_norm(tokens)
        found["maps"].append(patch_map(tokens, outputs["embedding"]))  # [B, h, w, D]
        if config.class_token:
            found["tokens"].append(class_token(tokens))  # [B, D]
    outputs = {name: tensors for name, tensors in found.items() if tensors}
    return keras.Model(model.inputs[0], outputs, name=f"{model.name}_features")
