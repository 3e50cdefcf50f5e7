"""Copies of models for export, which compute in a chosen precision and return logits."""

from typing import Any

import keras

from keras_vit.adaptation.adapt import lora_layers
from keras_vit.inference.keras_card import check_input
from keras_vit.inference.keras_model import KerasPredictor
from keras_vit.inference.model_card import ModelCard
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.keras_private import all_layers
from keras_vit.models.base import ConfiguredModel
from keras_vit.models.predictions import activation_of, endings, output_activation
from keras_vit.outputs import CLASSIFICATION

_RATES = ("dropout_rate", "attention_dropout_rate", "drop_path_rate", "rate")


def inference_model(model: keras.Model, precision: str = "float32", **arguments: Any) -> keras.Model:
    """Rebuild a model for inference in another precision, with the same weights.

    A model that was built under `mixed_bfloat16` has casts in its graph. TFLite cannot convert these casts, and a CPU
    without bfloat16 runs them slowly. The copy is therefore built again, without dropout. If the model returns
    `[B, k]`, the copy returns logits, without a final softmax or sigmoid. If the model returns `[B, h, w, k]`, the copy
    keeps the activation.
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "Artifacts are written by TensorFlow. Received: a model of KERAS_BACKEND="
            f"{keras.backend.backend()}. Save it as model.keras, and export that file with `keras-vit export`, or in a "
            "process with KERAS_BACKEND=tensorflow."
        )
    check_model(model)
    if not isinstance(model, ConfiguredModel):
        model = keras.Model(model.inputs[0], model.outputs[0], name=model.name)
    copy = _copy(model, precision, len(model.output_shape) == 2, arguments)
    _copy_weights(model, copy)
    for layer in lora_layers(copy):
        if layer.quantization_mode is None:  # merging would quantize the kernel again and change the outputs
            layer.merge_lora()
    return copy


def reference(model: keras.Model, copy: keras.Model, card: ModelCard) -> KerasPredictor:
    """Return the predictor to compare an artifact with: the copy if either model computes in 16 bits, else `model`."""
    return KerasPredictor(copy if is_half(model) or is_half(copy) else model, card)


def is_half(model: keras.Model) -> bool:
    """Return whether any layer computes in 16 bits."""
    return any(layer.compute_dtype in ("bfloat16", "float16") for layer in all_layers(model))


def check_model(model: Any) -> None:
    """Raise an error if a model cannot be exported."""
    if not isinstance(model, keras.Model):
        raise TypeError(f"The exported model must be a keras.Model. Received: {type(model).__name__}.")
    what = f"Received: {type(model).__name__} {model.name!r}"
    inputs: Any = getattr(model, "inputs", None) or []
    outputs: Any = getattr(model, "outputs", None) or []
    if not _is_ours(model) or not (inputs or isinstance(model, keras.Sequential)):
        raise ValueError(
            "The exported model must be a functional or sequential model that starts with layers of keras_vit, such as "
            f"keras.Model(model.input, keras.layers.Dense(3)(model.get_layer('pool').output)). {what}."
        )
    check_input(model)
    if len(outputs) != 1 or len(outputs[0].shape) not in (2, 4):
        shapes = [tuple(tensor.shape) for tensor in outputs]
        raise ValueError(
            "The exported model must return one row of logits or features per image, [B, k], or one per patch, "
            f"[B, h, w, k]. {what} with {shapes}. Build it with a pooling, or with `head`."
        )


def _is_ours(layer: Any) -> bool:
    """Return whether a layer belongs to this package, or is a model that contains such a layer."""
    inner = layer.layers if isinstance(layer, keras.Model) else ()
    return isinstance(layer, (BaseLayer, ConfiguredModel)) or any(map(_is_ours, inner))


def _copy(layer: Any, precision: str, is_last: bool, arguments: dict[str, Any]) -> Any:
    """Copy a layer or model without its weights and, if `is_last`, without its final softmax or sigmoid."""
    if isinstance(layer, keras.Model) and not isinstance(layer, ConfiguredModel):
        # In a nested sequential model, `input` and `output` are tensors of the outer model.
        is_sequential = isinstance(layer, keras.Sequential)
        inputs, outputs = (layer.inputs[0], layer.outputs[0]) if is_sequential else (layer.input, layer.output)
        model = keras.Model(inputs, outputs, name=layer.name)  # the same layers, not compiled
        last = endings(model)[1]
        if is_last and type(last).__name__ in ("Softmax", "Sigmoid"):  # a layer or an operation
            model = keras.Model(inputs, last.input, name=layer.name)
        dtype = keras.dtype_policies.get(precision).compute_dtype
        images = keras.tree.map_structure(
            lambda tensor: keras.Input(tensor.shape[1:], dtype=dtype, name=tensor.name), model.input
        )
        return keras.models.clone_model(
            model, images, lambda inner: _copy(inner, precision, is_last and inner is last, arguments)
        )
    config = _for_inference(layer.get_config(), precision)
    if isinstance(layer, ConfiguredModel):
        is_cut = is_last and output_activation(layer)
        changed = {"dtype": precision, "remat": "none", **({"classifier_activation": None} if is_cut else {})}
        config |= {name: value for name, value in changed.items() if name in config} | arguments
    elif is_last and activation_of(layer) in CLASSIFICATION:
        config["activation"] = "linear"
    return type(layer).from_config(config)


def _for_inference(config: dict[str, Any], precision: str) -> dict[str, Any]:
    """Return a layer's configuration without dropout and, unless the layer is quantized, in another precision.

    Sublayers in the configuration, such as the MLP of a block, are changed in the same way.
    """
    changed: dict[str, Any] = {name: 0.0 for name in _RATES if name in config}
    policy = config.get("dtype")
    if policy is not None and keras.dtype_policies.get(policy).quantization_mode is None:
        changed["dtype"] = precision
    for name, value in config.items():
        inner = value.get("config") if isinstance(value, dict) else None
        if isinstance(inner, dict) and "dtype" in inner:
            changed[name] = {**value, "config": _for_inference(inner, precision)}
    return {**config, **changed}


def _copy_weights(source: Any, target: Any) -> None:
    """Copy all weights to another model. Layers are matched by name, and their weights by the path in the layer."""
    if isinstance(target, keras.Model):
        for layer in target.layers:
            if layer.weights:
                _copy_weights(source.get_layer(layer.name), layer)
        return
    # The path of a weight begins with the path of its layer, which may begin with the name of a sequential model.
    sources, targets = (
        {weight.path.removeprefix(f"{layer.path}/"): weight for weight in layer.weights} for layer in (source, target)
    )
    if sources.keys() != targets.keys():
        different = sorted(sources.keys() ^ targets.keys())
        raise ValueError(
            f"The layer {source.name!r} and its copy must have the same weights. Only one layer has: {different[:5]}."
        )
    for path, weight in targets.items():
        weight.assign(sources[path])
