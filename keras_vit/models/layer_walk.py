"""Run a functional model layer by layer, for what its layers return or could return.

The only module of this package that uses private parts of Keras' models.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers import BiTStage, EncoderBlock, MAPHead, ResNetStage
from keras_vit.models.base import ConfiguredModel
from keras_vit.models.masked import MaskedModel


def outputs(model: keras.Model, inputs: Any, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the outputs of the layers with these names, or of all blocks and stages, in the order of execution.

    Of symbolic inputs, the outputs are symbolic, for another model of the same layers. Of a pre-training model, they
    are those of its encoder for whole images.

    Raises:
        ValueError: If there is no such layer.
    """
    found: dict[str, Any] = {}
    seen = []

    def call(layer, *args, **kwargs):
        output = layer(*args, **kwargs)
        seen.append(layer.name)
        if layer.name in names if names is not None else isinstance(layer, (EncoderBlock, ResNetStage, BiTStage)):
            found[layer.name] = output
        return output

    walk(model, inputs, call)
    for name in names or ():
        if name not in found:
            raise ValueError(f"{model.name!r} has no layer {name!r}.{_checks.nearest(name, seen)} It has: {seen}.")
    if not found:
        raise ValueError(f"No encoder block or ResNet stage was found in {model.name!r}. Name the `layers` you mean.")
    return found


def walk(model: keras.Model, inputs: Any, call: Callable[..., Any]) -> Any:
    """Run a model's layers in the model's order, models inside of it included, and return its output.

    No layer is copied and none is connected anew: the model is afterwards as it was. `call(layer, *args, **kwargs)`
    runs one layer and returns its output, of tensors with `training=False`: augmentation layers train by default.

    Raises:
        ValueError: If a model with attention in it is neither functional nor sequential, so that its order is unknown.
    """
    is_symbolic = any(isinstance(x, keras.KerasTensor) for x in keras.tree.flatten(inputs))

    def visit(layer, *args, **kwargs):
        if _is_walkable(layer):
            return walk(layer, args[0] if args else next(iter(kwargs.values())), call)
        if not is_symbolic and not isinstance(layer, (EncoderBlock, MAPHead)) and has_attention(layer):
            raise ValueError(_opaque(layer))
        if isinstance(layer, EncoderBlock) and kwargs.get("context") is not None:
            args = (kwargs.pop("context"),)  # the last block computes all tokens here, whatever the output depends on
        if isinstance(layer, keras.layers.Layer) and not is_symbolic:  # the others are operations of `keras.ops`
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
    # What `keras.models.clone_model(call_function=...)` runs, there on symbolic tensors only.
    return model._run_through_graph(flat, call_fn=visit)


def _is_walkable(layer: Any) -> bool:
    return isinstance(layer, keras.Sequential) or (isinstance(layer, keras.Model) and hasattr(layer, "_nodes_by_depth"))


def layers_of(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return a layer or model and all layers inside of it, at any depth."""
    return list(layer._flatten_layers())


def has_attention(layer: Any) -> bool:
    """Whether there is an encoder block or an attention pooling in a layer or model."""
    if not isinstance(layer, keras.layers.Layer):
        return False
    return any(isinstance(part, (EncoderBlock, MAPHead)) for part in layers_of(layer))


def _opaque(layer: Any) -> str:
    inner = [part.name for part in layers_of(layer) if isinstance(part, ConfiguredModel) and part is not layer]
    hint = f"Pass the model inside of it, {inner[0]!r}, with images as {inner[0]!r} takes them." if inner else ""
    return (
        f"Layers can be followed through functional and sequential models. Received: {layer.name!r} of class "
        f"{type(layer).__name__}, whose own `call` decides what runs when. {hint}".rstrip()
    )
