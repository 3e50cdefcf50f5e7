"""Run a functional model layer by layer, to inspect or change the outputs of its layers."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers import BiTStage, EncoderBlock, MAPHead, ResNetStage
from keras_vit.layers.keras_private import all_layers, run_functional
from keras_vit.models.base import ConfiguredModel
from keras_vit.models.masked import MaskedModel
from keras_vit.util import checks


def outputs(model: keras.Model, inputs: Any, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the outputs of the layers with these names, or of all blocks and stages, in the order of execution.

    Symbolic inputs give symbolic outputs, which can define another model with the same layers. For a pre-training
    model, the encoder computes the outputs for images without masked patches.
    """
    found: dict[str, Any] = {}
    seen = []

    def call(layer, *args, **kwargs):
        output = layer(*args, **kwargs)
        seen.append(layer.name)
        is_block = getattr(layer, "is_block", False) or isinstance(layer, (ResNetStage, BiTStage))
        if layer.name in names if names is not None else is_block:
            found[layer.name] = output
        return output

    walk(model, inputs, call)
    for name in names or ():
        if name not in found:
            raise ValueError(f"{model.name!r} has no layer {name!r}.{checks.nearest(name, seen)} It has: {seen}.")
    if not found:
        raise ValueError(f"No encoder block or ResNet stage was found in {model.name!r}. Pass the names of `layers`.")
    return found


def walk(model: keras.Model, inputs: Any, call: Callable[..., Any]) -> Any:
    """Run a model layer by layer, including nested models, and return its output. The model itself does not change.

    `call(layer, *args, **kwargs)` must run one layer and return its output. Unless the inputs are symbolic, the
    arguments include `training=False`, because augmentation layers augment by default.
    """
    is_symbolic = any(isinstance(x, keras.KerasTensor) for x in keras.tree.flatten(inputs))

    def visit(layer, *args, **kwargs):
        if _is_walkable(layer):
            return walk(layer, args[0] if args else next(iter(kwargs.values())), call)
        if not is_symbolic and not isinstance(layer, (EncoderBlock, MAPHead)) and has_attention(layer):
            raise ValueError(_opaque(layer))
        if isinstance(layer, EncoderBlock) and kwargs.get("context") is not None:
            args = (kwargs.pop("context"),)  # also compute the tokens that the output does not need
        if isinstance(layer, keras.layers.Layer) and not is_symbolic:  # not an operation of `keras.ops`
            kwargs["training"] = False
        return call(layer, *args, **kwargs)

    if isinstance(model, (keras.Sequential, MaskedModel)):
        for layer in model.encoder_layers if isinstance(model, MaskedModel) else model.layers:
            inputs = visit(layer, inputs)
        return inputs
    if not _is_walkable(model):
        raise ValueError(_opaque(model))
    flat = keras.tree.flatten(inputs)
    if len(flat) != len(model.inputs):
        raise ValueError(
            f"The model must have a single input. Received: {model.name!r}, which takes {len(model.inputs)} inputs. "
            "Pass the Vision Transformer inside of it, with the images that it takes."
        )
    if not is_symbolic:
        flat = [ops.cast(ops.convert_to_tensor(x), wanted.dtype) for x, wanted in zip(flat, model.inputs, strict=True)]
    return run_functional(model, flat, visit)


def _is_walkable(layer: Any) -> bool:
    return isinstance(layer, keras.Sequential) or (isinstance(layer, keras.Function) and hasattr(layer, "operations"))


def has_attention(layer: Any) -> bool:
    """Return whether a layer or model contains an encoder block or attention pooling."""
    if not isinstance(layer, keras.layers.Layer):
        return False
    return any(isinstance(part, (EncoderBlock, MAPHead)) for part in all_layers(layer))


def _opaque(layer: Any) -> str:
    inner = [part.name for part in all_layers(layer) if isinstance(part, ConfiguredModel) and part is not layer]
    hint = f"Pass the model inside of it, {inner[0]!r}, with the input of {inner[0]!r}." if inner else ""
    return (
        f"Only functional and sequential models can be run layer by layer. Received: {layer.name!r} of class "
        f"{type(layer).__name__}, which has its own `call`. {hint}".rstrip()
    )
