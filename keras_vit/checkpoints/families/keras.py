"""Files of this package's models, written by Keras. `.keras` files contain arguments, `.weights.h5` files do not."""

import json
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import (
    KINDS,
    Checkpoint,
    Hints,
    Layout,
    Shape,
    noted_preprocessing,
    variable_shapes,
)
from keras_vit.checkpoints.families.family import Family
from keras_vit.checkpoints.formats.keras import KerasSource
from keras_vit.checkpoints.formats.tensors import CheckpointError, TensorSource
from keras_vit.checkpoints.keras_files import check_config, resolve_arguments
from keras_vit.checkpoints.rules import SAME, Binding
from keras_vit.models import MaskedPatchConfig, MaskedPatchPredictor, ViTConfig

_PRETRAINING = ("mask_token/", "patch_head/")  # variables that masked patch prediction adds to the encoder


def recognize(source: TensorSource, hints: Hints) -> Checkpoint | None:
    """Return the checkpoint in a file, or None if Keras did not write the file."""
    if not isinstance(source, KerasSource):
        return None
    bindings = [Binding((name,), (name,), SAME) for name in source.tensors]
    ignored: list[str] = []
    if "patch_head/kernel" in source.tensors:
        ignored = [name for name in source.tensors if name.startswith(_PRETRAINING)]
        bindings = [binding for binding in bindings if binding.stored[0] not in ignored]
    shapes = variable_shapes(source, bindings, heads=0)
    decoder = "decoder_embed/kernel" in shapes
    kind = "bit" if "root_block/conv_root/kernel" in shapes else "mae" if decoder else "vit"
    checkpoint = Checkpoint(source, Layout("keras"), bindings, shapes, kind=kind, ignored=ignored)
    if source.config is not None:
        checkpoint.arguments, checkpoint.frozen = _stored_arguments(source, kind, shapes)
        checkpoint.name_classes(checkpoint.frozen.pop("class_names", None))
        checkpoint.values = checkpoint.frozen.pop("values", None)
        checkpoint.prediction_activation = checkpoint.frozen.pop("prediction_activation", None)
        preprocessing = {name: checkpoint.frozen.pop(name, None) for name in ("input_normalization", "resizing")}
        found = noted_preprocessing(preprocessing, f"{source.path}: config.json")
        checkpoint.input_normalization, checkpoint.resizing = found
    elif kind == "bit":
        checkpoint.arguments = architecture.infer_bit(shapes, source.path)
    else:
        checkpoint.arguments = architecture.infer_vit(shapes, None, source.path)
        if checkpoint.arguments["position_embedding"] == "none":
            del checkpoint.arguments["position_embedding"]  # the embedding may be fixed, learned elsewhere or absent
        if decoder:
            query = shapes.get("decoder_block_0/MultiHeadDotProductAttention_0/query/kernel", ())
            heads = query[1] if len(query) == 3 else None
            checkpoint.arguments |= architecture.infer_decoder(shapes, heads, source.path) | {"activation": "gelu"}
        if checkpoint.arguments.get("mlp") == "swiglu":
            checkpoint.arguments["activation"] = "silu"
        else:
            checkpoint.assumed["activation"] = "not stored in a file of weights; the model has this value"
    if checkpoint.arguments.get("head") is not None:
        checkpoint.allow_any_head()
    if decoder or ignored:
        checkpoint.allow_any_head()
        checkpoint.arguments["pooling"] = "token" if checkpoint.arguments.get("class_token") else "gap"
    return checkpoint


def _stored_arguments(
    source: KerasSource, kind: str, shapes: Mapping[str, Shape]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments and other state of a `.keras` model, after comparing the configuration with the weights."""
    path, config = source.path, source.config or {}
    class_name = str(config.get("class_name"))
    own = KINDS[kind]
    config_class = own.config if class_name == own.model.__name__ else None
    if kind == "vit" and class_name == MaskedPatchPredictor.__name__:
        config_class = MaskedPatchConfig
    arguments = config.get("config")
    if config_class is None or not isinstance(arguments, dict):
        raise CheckpointError(f"{path} has a {class_name[:60]!r}, not a keras_vit model. Use keras.saving.load_model.")
    changes = arguments.get("layers", {})
    if not _keeps_weights(changes):
        raise CheckpointError(f"{path} has changed or quantized layers. Use keras.saving.load_model.")
    names = ("trainable", "input_normalization", "resizing", "class_names", "values", "prediction_activation")
    state = {name: arguments[name] for name in names if name in arguments}
    if '"lora": ' not in json.dumps(changes):  # with LoRA, the stored kernels are merged, and are loaded without LoRA
        state["layers"] = changes
    check_config(config, list(shapes.values()), path)
    resolved = resolve_arguments(config_class, arguments, path).to_dict()
    if config_class is MaskedPatchConfig:
        resolved = {name: value for name, value in resolved.items() if name in ViTConfig.names()}
    return resolved, state


def _keeps_weights(layers: Any) -> bool:
    """Return whether the only changes to layers are freezing and LoRA, so that the stored weights still fit."""
    return isinstance(layers, dict) and all(
        isinstance(change, dict)
        and not set(change) - {"trainable", "weights", "lora", "sublayers"}
        and isinstance(weights := change.get("weights", {}), dict)
        and all(isinstance(flag, bool) for flag in (change.get("trainable", True), *weights.values()))
        and _keeps_weights(change.get("sublayers", {}))
        for change in layers.values()
    )


FAMILY = Family("keras", recognize, rules=lambda layout: [])
