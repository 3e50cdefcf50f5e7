"""Hugging Face's ViT, DeiT, DINOv2, DINOv3 and SigLIP: a directory with `model.safetensors` and `config.json`.

DINO and MSN have the model of ViT. The model may be the tower of a larger one. Of SigLIP 2, the models of fixed size
are read.
"""

import functools
import re
from collections.abc import Callable, Mapping, Set
from typing import Any

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import _torch
from keras_vit.checkpoints.families._huggingface import DINOV2, DINOV3, SIGLIP, VIT, ModelType, rules
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.position_grid import stated_size
from keras_vit.checkpoints.rules import Rule, bind_stored
from keras_vit.models.config import plain

# Fields of a configuration that tensors show, and our arguments.
SHOWN = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_channels": "channels",
    "intermediate_size": "mlp_dim",
    "qkv_bias": "qkv_bias",
    "patch_size": "patch_size",
}
_NESTED = ("vision_config", "backbone_config")  # of the configuration of a model with a tower
# Fields of a tower's configuration that change what a model computes, unless they are off, and those that are known.
_CHANGES = re.compile(r"norm|rope|rotary|bias|mlp|pos_|gate|swiglu|act|pool|window|key_value|qk|attn|causal|head")
_KNOWN_FIELDS = re.compile(
    r"layer_norm_eps|rope_theta|rope_parameters|(qkv|query|key|value|proj|mlp)_bias|mlp_ratio|use_gated_mlp|hidden_act|"
    r"use_swiglu_ffn|pos_embed_(shift|jitter|rescale)|apply_layernorm|num_attention_heads|vision_use_head|"
    r"initializer_factor|reshape_hidden_states|problem_type|architectures|pruned_heads|_?attn_implementation.*|"
    r"chunk_size_feed_forward|tie_word_embeddings|.*drop.*"
)


def recognize(source: TensorSource, hints: Hints, model_type: ModelType) -> Checkpoint | None:
    """Return the checkpoint that a file holds, None if it is not of this type."""
    anchor = f"{model_type.styles['published'].embedding}.weight"
    body, names = _torch.find_body(source, anchor), source.tensors.keys()
    if body is None or not any(model_type.mark in name for name in names):
        return None
    config = _merged(source.config)
    is_naflex = str(config.get("model_type")).startswith("siglip2")
    if model_type is SIGLIP and (is_naflex or len(source.tensors[f"{body}{anchor}"].shape) == 2):
        raise CheckpointError(
            f"{source.path} is a NaFlex model (model_type='siglip2'), whose positions depend on each image, and which "
            "is not supported. Use a SigLIP 2 model of fixed size, such as google/siglip2-base-patch16-224."
        )
    # No classifier reads the pooler, and masked-image modeling is for pre-training.
    ignored = {f"{body}embeddings.mask_token"} if model_type is VIT else set()
    if {"classifier.weight", "cls_classifier.weight"} & names:
        unread = f"{body}pooler." if model_type is VIT else f"{body}head."
        ignored |= {name for name in names if name.startswith(unread)}
    position = "teacher" if "cls_classifier.weight" in names else ""
    layouts = [Layout("huggingface", style, position, prefix=body) for style in model_type.styles]
    layout = nearest(source, layouts, functools.partial(rules, model_type=model_type))
    checkpoint = bind(source, layout, rules(layout, model_type), hints, model_type, config, ignored)
    _infer(checkpoint, config, model_type)
    if not checkpoint.arguments["include_top"] and (model_type is not VIT or config.get("model_type") == "vit_mae"):
        checkpoint.allow_any_head()
    return checkpoint


def nearest(source: TensorSource, layouts: list[Layout], rules: Callable[[Layout], list[Rule]]) -> Layout:
    """Return the layout whose rules name the most tensors."""
    return min(layouts, key=lambda layout: len(bind_stored(rules(layout), source.tensors)[1]))


def _merged(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the configuration of the tower, with the names of the classes, which the whole model has."""
    whole = dict(config or {})
    inner = next((whole[name] for name in _NESTED if isinstance(whole.get(name), dict)), None)
    if inner is None:
        return whole
    shared = {name: whole.get(name) for name in ("architectures", "id2label")}
    return {**inner, **shared, "model_type": inner.get("model_type", whole.get("model_type"))}


def bind(
    source: TensorSource,
    layout: Layout,
    rules: list[Rule],
    hints: Hints,
    model_type: ModelType,
    config: dict[str, Any],
    ignored: Set[str] = frozenset(),
    kind: str = "vit",
) -> Checkpoint:
    """Return the checkpoint with the arguments that its tensors and its configuration show."""
    path, key, defaults = source.path, "num_attention_heads", model_type.defaults
    if not config:
        _torch.note_missing_config(path)
    heads = config.get(key, defaults[key] if config else None)
    stated = None if heads is None else (key, heads)
    projection = f"{layout.prefix}{model_type.styles[layout.style].embedding}.weight"
    checkpoint = _torch.bind(source, layout, rules, hints, projection, stated, ignored, kind)
    found = checkpoint.arguments
    found["activation"] = _torch.activation(config.get("hidden_act", defaults["hidden_act"]), path)
    epsilon = config.get("layer_norm_eps", defaults["layer_norm_eps"])
    found["layer_norm_epsilon"] = _torch.number(epsilon, 0.0, 1.0, f"{path}: the configuration's layer_norm_eps")
    for argument, key in (("activation", "hidden_act"), ("layer_norm_epsilon", "layer_norm_eps")):
        if key not in config:
            checkpoint.assumed[argument] = f"the default of {key}"
    _check_config(config, found, layout.prefix, path, model_type)
    if "image_size" in config:
        found["image_size"] = config["image_size"]
    if source.preprocessor is not None:
        checkpoint.input_normalization = _torch.stated_normalization(source.preprocessor, path)
    labels = config.get("id2label")
    if isinstance(labels, dict) and found["include_top"]:
        if len(labels) != found["classes"]:
            raise CheckpointError(f"{path}: config.json names {len(labels)} classes, the head has {found['classes']}.")
        names: tuple[Any, ...] = tuple(labels.get(str(index)) for index in range(len(labels)))
        if all(isinstance(name, str) for name in names):
            checkpoint.class_names = names
    return checkpoint


def _check_config(config: dict[str, Any], found: dict[str, Any], body: str, path: str, model_type: ModelType) -> None:
    """Refuse tensors that are not those of the configuration."""
    stated_type = config.get("model_type")
    if stated_type not in (None, *model_type.model_types):
        raise CheckpointError(
            f"{path}: model_type={str(stated_type)[:40]!r} of config.json must be in {model_type.model_types}."
        )
    biases = dict(zip(("query_bias", "key_bias", "value_bias"), _torch.biases(found["qkv_bias"]), strict=True))
    gated = config.get("use_gated_mlp", config.get("use_swiglu_ffn"))
    stated = {
        **{argument: config.get(field) for field, argument in SHOWN.items()},
        **{name: config.get(name) for name in ("pooler_act", *biases)},
        "num_registers": config.get("num_register_tokens"),
        "mlp": None if gated is None else "swiglu" if gated else "mlp",
    }
    pooler = "tanh" if found["representation_size"] else None
    architecture.check_stated(stated, {**found, **biases, "pooler_act": pooler}, f"{path}: config.json")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or "ForImageClassification" not in str(architectures[:1]):
        return
    if body and not found["include_top"]:  # without a prefix it is the body alone, on purpose
        raise CheckpointError(f"{path} has no classifier, though config.json says {architectures[0]}. Fetch it again.")


def _infer(checkpoint: Checkpoint, config: dict[str, Any], model_type: ModelType) -> None:
    """Add the arguments that the type and its configuration determine."""
    found, path = checkpoint.arguments, checkpoint.path
    if model_type is VIT:
        return
    found["pooling"] = model_type.poolings[bool(found["include_top"])]
    if found["pooling"] == "map" and "MAPHead_0/probe" not in checkpoint.shapes:
        found["pooling"] = "gap"
    if found["mlp"] == "swiglu":
        found["activation"] = "silu"  # `hidden_act` is that of the plain MLP in DINOv2
        if model_type is DINOV3 and config.get("hidden_act", "silu") not in ("silu", "swish"):
            raise CheckpointError(f"{path}: a gated MLP with hidden_act={str(config['hidden_act'])[:40]} is not known.")
    if model_type is DINOV2 and found["num_registers"]:
        checkpoint.resize_method = "antialiased"
    if model_type is DINOV3:
        found |= {"position_embedding": "rope2d", "rope_base": _rope_base(config, path)}
        for name, default in (("shift", None), ("jitter", None), ("rescale", 2.0)):
            found[f"rope_{name}"] = config.get(f"pos_embed_{name}", default if config else None)
    for name, value in config.items():
        if _CHANGES.search(name) and not _KNOWN_FIELDS.fullmatch(name) and value not in (None, False):
            raise CheckpointError(f"{path}: {name}={str(value)[:40]!r} of its configuration is not known.")
    size, patch = stated_size(found.get("image_size")), stated_size(found["patch_size"])
    if size and patch and patch[0] <= size[0] and patch[1] <= size[1]:  # the rest at the borders is not read
        found["image_size"] = plain((size[0] // patch[0] * patch[0], size[1] // patch[1] * patch[1]))


def _rope_base(config: Mapping[str, Any], path: str) -> float:
    parameters = config.get("rope_parameters") or {}
    if not isinstance(parameters, dict) or parameters.get("rope_type", "default") != "default":
        raise CheckpointError(f"{path}: rope_parameters={str(parameters)[:80]} of its configuration is not supported.")
    base = next((c["rope_theta"] for c in (config, parameters) if c.get("rope_theta") is not None), 100.0)
    return _torch.number(base, 1, 1e9, f"{path}: the configuration's rope_theta")
