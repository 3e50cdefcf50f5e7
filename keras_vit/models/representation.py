"""Feature extraction: the input of the classification head, and the tokens of any block."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_vit.layers import PatchMeanPooling, TokenPooling, UnflattenGrid
from keras_vit.models import layer_walk
from keras_vit.models.base import check_own
from keras_vit.models.masked import MaskedModel
from keras_vit.models.vit_config import ViTConfig
from keras_vit.util import checks


def head_input(model: keras.Model) -> keras.KerasTensor | None:
    """Return the symbolic features `[B, D]` of a model (the input of its head), or None for a model without a head.

    For a distilled model, the features are the mean of the inputs of both heads. For a head that reads all tokens, and
    for a pre-training model, the features are the class token, or the mean of the patches if there is no class token.
    """
    config = getattr(model, "config", None)
    layers = {layer.name: layer for layer in model.layers}
    if isinstance(model, MaskedModel):
        return _pooled(model, layer_walk.outputs(model, model.inputs[0], ["encoder_norm"])["encoder_norm"])
    head: Any = config.head if isinstance(config, ViTConfig) else None
    if head is not None:
        inputs = keras.tree.flatten(head.input)  # the tokens of each block, then the patches of each block
        return _pooled(model, inputs[len(inputs) // 2 - 1])
    inputs = [layers[name].input for name in ("head", "head_dist") if name in layers]
    inputs = [x for x in inputs if isinstance(x, keras.KerasTensor)]  # leave out lists of tokens and patches
    if len(inputs) < 2:
        return inputs[0] if inputs else None
    return keras.layers.Average(dtype=layers["head"].compute_dtype, name="features")(inputs)


def _head_patches(model: keras.Model) -> keras.KerasTensor:
    """Return the symbolic patches `[B, h, w, D]` that a segmentation head reads, of several blocks concatenated."""
    inputs = keras.tree.flatten(model.config.head.input)  # the tokens of each block, then the patches of each block
    patches = inputs[len(inputs) // 2 :]
    return patches[0] if len(patches) == 1 else keras.layers.Concatenate(dtype=model.dtype_policy)(patches)


def _pooled(model: Any, tokens: keras.KerasTensor) -> keras.KerasTensor:
    config, policy = model.config, model.dtype_policy
    if config.class_token:
        return TokenPooling(0, dtype=policy)(tokens)
    return PatchMeanPooling(config.num_prefix_tokens + config.num_registers, dtype=policy)(tokens)


def representation(model: keras.Model, dense: bool = False) -> keras.Model:
    """Return a model with the same layers from images to `[features, scores]`.

    The features are the input of the head, float `[B, D]`, or with `dense` the patches that a segmentation head reads,
    `[B, h, w, D]`. The scores are the output of `model`. The features of a distilled model are the mean of the inputs
    of its two heads, as with `include_top=False` and in timm. For a model without a head, both are the output of
    `model`. For a pre-training model, both are the output of its encoder for images without masked patches.
    """
    features = _head_patches(model) if dense else head_input(model)
    output = features if isinstance(model, MaskedModel) else model.outputs[0]
    features = output if features is None else features
    return keras.Model(model.inputs[0], [features, output], name=f"{model.name}_representation")


def feature_extractor(model: keras.Model, blocks: Sequence[int] = (2, 5, 8, 11), norm: bool = True) -> keras.Model:
    """Return a model with the same layers whose outputs are the features of several blocks.

    Args:
        model: A `VisionTransformer` (plain or hybrid) or a pre-training model.
        blocks: Indices of the blocks, from 0. Negative indices count from the end.
        norm: Whether to apply the model's final norm to the features. Ignored if the norm follows the pooling, or if
            the model has no final norm.

    Returns:
        A functional model from images to a dictionary of two lists with one tensor per block: the patches
        `[B, h, w, D]` in `"maps"`, and the class token `[B, D]` in `"tokens"`. Without a class token, `"tokens"` is
        missing. Registers are never included.

    Raises:
        ValueError: If `model` is not a Vision Transformer, or a block does not exist.

    Example:
    >>> model = keras_vit.feature_extractor(keras_vit.ViT_Ti16(image_size=32, classes=10), blocks=(5, -1))
    >>> {name: [tuple(output.shape) for output in outputs] for name, outputs in model.output.items()}
    {'maps': [(None, 2, 2, 192), (None, 2, 2, 192)], 'tokens': [(None, 192), (None, 192)]}
    """
    check_own(model)
    config = model.config
    if not isinstance(config, ViTConfig):
        raise ValueError(f"`model` must have encoder blocks. Received: {model.name!r}, a {type(model).__name__}.")
    numbers = checks.sequence("blocks", blocks, "integers, such as (2, 5, 8, 11)")
    if not numbers or not all(number in range(-config.num_layers, config.num_layers) for number in numbers):
        raise ValueError(f"`blocks` must be numbers of the {config.num_layers} blocks. Received: blocks={blocks!r}.")
    names = [f"encoderblock_{number % config.num_layers}" for number in numbers]
    outputs, shared = layer_walk.outputs(model, model.inputs[0], ["embedding", *names]), {"dtype": model.dtype_policy}
    has_norm = config.final_norm and not config.norm_after_pooling
    final_norm = model.get_layer("encoder_norm") if norm and has_norm else lambda x: x
    patch_map = UnflattenGrid(config.num_prefix_tokens + config.num_registers, name="patch_map", **shared)
    class_token = TokenPooling(0, name="class_token", **shared)
    tokens = [final_norm(outputs[name]) for name in names]  # [B, prefix + registers + h*w, D] each
    found = {"maps": [patch_map(x, outputs["embedding"]) for x in tokens]}  # [B, h, w, D] each
    if config.class_token:
        found["tokens"] = [class_token(x) for x in tokens]  # [B, D] each
    return keras.Model(model.inputs[0], found, name=f"{model.name}_features")
