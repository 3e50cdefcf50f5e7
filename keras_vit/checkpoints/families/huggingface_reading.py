"""Read Hugging Face's ViT, DeiT, DINOv2, DINOv3 and SigLIP from a directory with `model.safetensors` and `config.json`.

DINO and MSN have the architecture of ViT. The model may also be the tower of a larger model. SigLIP 2 models are
supported if their image size is fixed.
"""

import functools
import re
from collections.abc import Callable, Mapping, Set
from typing import Any

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout
from keras_vit.checkpoints.families import _preprocessing, _torch
from keras_vit.checkpoints.families._huggingface import DINOV2, DINOV3, SIGLIP, VIT, ModelType, rules
from keras_vit.checkpoints.formats.tensors import CheckpointError, TensorSource
from keras_vit.checkpoints.position_grid import stated_size
from keras_vit.checkpoints.rules import Rule, bind_stored
from keras_vit.models.config import plain

# Fields of a configuration that can be inferred from tensors, and the corresponding arguments of this package.
SHOWN = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_channels": "channels",
    "intermediate_size": "mlp_dim",
    "qkv_bias": "qkv_bias",
    "patch_size": "patch_size",
}
_FIRST_OF_MLP = ("MlpBlock_0/Dense_0", "SwiGLU_0/up")
_HEAD = re.compile(r"(.*?)(cls_|distillation_)?classifier\.(weight|bias)")
_NESTED = ("vision_config", "backbone_config")  # fields with the configuration of a tower
# Fields of a configuration that may change the outputs if they are enabled, and the supported fields among them.
_CHANGES = re.compile(r"norm|rope|rotary|bias|mlp|pos_|gate|swiglu|act|pool|window|key_value|qk|attn|causal|head")
_KNOWN_FIELDS = re.compile(
    r"layer_norm_eps|rope_theta|rope_parameters|(qkv|query|key|value|proj|mlp)_bias|mlp_ratio|use_gated_mlp|hidden_act|"
    r"use_swiglu_ffn|pos_embed_(shift|jitter|rescale)|apply_layernorm|num_attention_heads|vision_use_head|"
    r"initializer_factor|reshape_hidden_states|problem_type|architectures|_?attn_implementation.*|"
    r"chunk_size_feed_forward|tie_word_embeddings|.*drop.*"
)


def recognize(source: TensorSource, hints: Hints, model_type: ModelType) -> Checkpoint | None:
    """Return the checkpoint in a file, or None if the file is not of this type."""
    anchor = f"{model_type.styles['published'].embedding}.weight"
    body, names = _torch.find_body(source, anchor, hints), source.tensors.keys()
    if body is None or not any(model_type.mark in name for name in names):
        return None
    config = _merged(source.config)
    is_naflex = str(config.get("model_type")).startswith("siglip2")
    if model_type is SIGLIP and (is_naflex or len(source.tensors[f"{body}{anchor}"].shape) == 2):
        raise CheckpointError(
            f"{source.path} is a NaFlex model (model_type='siglip2'), whose positions depend on each image. NaFlex "
            "is not supported. Use a SigLIP 2 model of fixed size, such as google/siglip2-base-patch16-224."
        )
    # No classifier reads the pooler, and only pre-training reads the mask token.
    ignored = {f"{body}embeddings.mask_token"} if model_type is VIT else set()
    # A wrapper adds the same prefix to the names of the body and of the head.
    heads = [m for name in names if (m := _HEAD.fullmatch(name)) and body.startswith(m[1]) and m[1][-1:] in ("", ".")]
    outer = max((head[1] for head in heads), key=len, default="")
    if heads:
        unread = f"{body}pooler." if model_type is VIT else f"{body}head."
        ignored |= {name for name in names if name.startswith(unread)}
    position = "teacher" if any(head[2] == "cls_" for head in heads) else ""
    layouts = [Layout("huggingface", style, position, prefix=body, outer=outer) for style in model_type.styles]
    layout = nearest(source, layouts, functools.partial(rules, model_type=model_type))
    checkpoint = bind(source, layout, rules(layout, model_type), hints, model_type, config, ignored)
    _infer(checkpoint, config, model_type)
    if not checkpoint.arguments["include_top"] and (model_type is not VIT or config.get("model_type") == "vit_mae"):
        checkpoint.allow_any_head()
    return checkpoint


def nearest(source: TensorSource, layouts: list[Layout], rules: Callable[[Layout], list[Rule]]) -> Layout:
    """Return the layout whose rules match the most tensors."""
    return min(layouts, key=lambda layout: len(bind_stored(rules(layout), source.tensors)[1]))


def _merged(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the configuration of the tower, with the class names of the whole model."""
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
    """Bind the tensors of a file. Return the checkpoint with arguments inferred from tensors and configuration."""
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
    _check_config(config, checkpoint, model_type)
    if "image_size" in config:
        found["image_size"] = config["image_size"]
    if source.preprocessor is not None:
        checkpoint.input_normalization = _preprocessing.stated_normalization(source.preprocessor, path)
        checkpoint.resizing = _preprocessing.of_transformers(source.preprocessor)
    labels = config.get("id2label")
    if isinstance(labels, dict) and found["include_top"]:
        names = [labels.get(str(index)) for index in range(found["classes"])]
        if len(labels) != len(names) or not all(isinstance(name, (str, int)) for name in names):
            raise CheckpointError(
                f"{path}: id2label in config.json must name the {len(names)} classes of the head. Received: "
                f"{len(labels)} classes, {str(labels)[:60]}. Correct or remove it."
            )
        checkpoint.class_names = tuple(map(str, names))
    return checkpoint


def _check_config(config: dict[str, Any], checkpoint: Checkpoint, model_type: ModelType) -> None:
    """Refuse tensors that disagree with the type or the configuration."""
    source, found, body = checkpoint.source, checkpoint.arguments, checkpoint.layout.prefix
    own, types = config.get("model_type"), (None, *model_type.model_types)
    outer = (source.config or {}).get("model_type")  # type of the whole model: with a head, or around a tower
    for name in (own, outer if found["include_top"] else own):
        if name not in types:
            raise CheckpointError(
                f"{source.path}: model_type={str(name)[:40]!r} in config.json must be in {types[1:]}."
            )
    biases = dict(zip(("query_bias", "key_bias", "value_bias"), _torch.biases(found["qkv_bias"]), strict=True))
    biases["proj_bias"] = found["output_projection"] == "bias"
    biases["mlp_bias"] = any(f"encoderblock_0/{name}/bias" in checkpoint.shapes for name in _FIRST_OF_MLP)
    gated, ratio = config.get("use_gated_mlp", config.get("use_swiglu_ffn")), config.get("mlp_ratio")
    stated = {
        **{argument: config.get(field) for field, argument in SHOWN.items()},
        **{name: config.get(name) for name in ("pooler_act", *biases)},
        "num_registers": config.get("num_register_tokens"),
        "mlp": None if gated is None else "swiglu" if gated else "mlp",
    }
    if model_type is DINOV2 and isinstance(ratio, (int, float)) and 0 < ratio < 2**20:
        width = int(found["hidden_size"] * ratio)
        stated["mlp_dim"] = (int(width * 2 / 3) + 7) // 8 * 8 if found["mlp"] == "swiglu" else width
    if own == "dinov2_with_registers" and not found["num_registers"]:
        stated["num_registers"] = 4  # transformers' default
    if model_type is VIT and own is not None:
        stated["distillation_token"] = own == "deit"
    if model_type is SIGLIP and not found["include_top"]:
        stated["pooling"] = config.get("vision_use_head", True if outer in types else None)
    pooler = "tanh" if found["representation_size"] else None
    architecture.check_type(source, {**found, **biases, "pooler_act": pooler}, model_type.always, stated)
    architectures, labels = config.get("architectures"), config.get("id2label")
    described = str(architectures[:1]) if isinstance(architectures, list) else ""
    if "ForImageClassification" not in described:
        alone = outer == own and body.endswith(f"{own}.") and all(name.startswith(body) for name in source.tensors)
        described = f"{len(labels)} classes" if alone and isinstance(labels, dict) and len(labels) != 2 else ""
    if described and body and not found["include_top"]:  # a body without a prefix was saved on purpose
        raise CheckpointError(
            f"{source.path} has no `classifier` next to {body!r}, but config.json has {described}. Save the whole "
            "model, or remove `architectures` and `id2label` to load the encoder."
        )


def _infer(checkpoint: Checkpoint, config: dict[str, Any], model_type: ModelType) -> None:
    """Add the arguments that the type and the configuration determine."""
    found, path = checkpoint.arguments, checkpoint.path
    if model_type is VIT:
        return
    found["pooling"] = model_type.poolings[bool(found["include_top"])]
    if found["pooling"] == "map" and "MAPHead_0/probe" not in checkpoint.shapes:
        found["pooling"] = "gap"
    if found["mlp"] == "swiglu":
        found["activation"] = "silu"  # in DINOv2, `hidden_act` only applies to plain MLPs
        if model_type is DINOV3 and config.get("hidden_act", "silu") not in ("silu", "swish"):
            raise CheckpointError(f"{path}: gated MLPs need SiLU, not hidden_act={str(config['hidden_act'])[:40]}.")
    if model_type is DINOV2 and found["num_registers"]:
        checkpoint.resize_method = "antialiased"
    if model_type is DINOV3:
        found |= {"position_embedding": "rope2d", "rope_base": _rope_base(config, path)}
        for name, default in (("shift", None), ("jitter", None), ("rescale", 2.0)):
            found[f"rope_{name}"] = config.get(f"pos_embed_{name}", default if config else None)
    for name, value in config.items():
        if _CHANGES.search(name) and not _KNOWN_FIELDS.fullmatch(name) and value not in (None, False, {}, []):
            raise CheckpointError(f"{path}: {name}={str(value)[:40]!r} in its configuration is not supported.")
    size, patch = stated_size(found.get("image_size")), stated_size(found["patch_size"])
    if size and patch and patch[0] <= size[0] and patch[1] <= size[1]:  # the model ignores the remaining pixels
        found["image_size"] = plain((size[0] // patch[0] * patch[0], size[1] // patch[1] * patch[1]))


def _rope_base(config: Mapping[str, Any], path: str) -> float:
    parameters = config.get("rope_parameters") or {}
    if not isinstance(parameters, dict) or parameters.get("rope_type", "default") != "default":
        raise CheckpointError(f"{path}: rope_parameters={str(parameters)[:80]} in its configuration is not supported.")
    base = next((c["rope_theta"] for c in (config, parameters) if c.get("rope_theta") is not None), 100.0)
    return _torch.number(base, 1, 1e9, f"{path}: the configuration's rope_theta")
