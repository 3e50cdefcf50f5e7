"""Hugging Face's DINOv2, DINOv3 and SigLIP (also SigLIP 2 of fixed size), alone or as the tower of a larger model."""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import _torch, huggingface
from keras_vit.checkpoints.families._towers import DINOV2, DINOV3, SIGLIP, Tower, rules
from keras_vit.checkpoints.families.family import ANY, GIVEN, Config, Family, Files, Writing
from keras_vit.checkpoints.families.family import Names as ClassNames
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.position_grid import stated_size
from keras_vit.checkpoints.rules import bind_stored
from keras_vit.models.config import plain
from keras_vit.models.normalization import Normalization

_NESTED = ("vision_config", "backbone_config")  # of the configuration of a model with a tower
# Fields of a configuration that change what a model computes, unless they are off, and those of them that are known.
_CHANGES = re.compile(r"norm|rope|rotary|bias|mlp|pos_|gate|swiglu|act|pool|window|key_value|qk|attn|causal|head")
_KNOWN_FIELDS = re.compile(
    r"layer_norm_eps|rope_theta|rope_parameters|(qkv|query|key|value|proj|mlp)_bias|mlp_ratio|use_gated_mlp|hidden_act|"
    r"use_swiglu_ffn|pos_embed_(shift|jitter|rescale)|apply_layernorm|num_attention_heads|vision_use_head|"
    r"initializer_factor|reshape_hidden_states|problem_type|architectures|pruned_heads|_?attn_implementation.*|"
    r"chunk_size_feed_forward|tie_word_embeddings|.*drop.*"
)


def _recognize(source: TensorSource, hints: Hints, tower: Tower) -> Checkpoint | None:
    """Return the checkpoint that a file holds, None if it is not of this type."""
    anchor = f"{next(iter(tower.styles.values())).embedding}.weight"
    body = _torch.find_body(source, anchor)
    if body is None or (tower.mark and not any(tower.mark in name for name in source.tensors)):
        return None
    config = _merged(source.config)
    is_naflex = str(config.get("model_type")).startswith("siglip2")
    if tower is SIGLIP and (is_naflex or len(source.tensors[f"{body}{anchor}"].shape) == 2):
        raise CheckpointError(
            f"{source.path} is a NaFlex model (model_type='siglip2'), whose positions depend on each image, and which "
            "is not supported. Use a SigLIP 2 model of fixed size, such as google/siglip2-base-patch16-224."
        )
    ignored = set()
    if tower is SIGLIP and "classifier.weight" in source.tensors:  # it reads the mean of the tokens
        ignored = {name for name in source.tensors if name.startswith(f"{body}head.")}
    layouts = [Layout("huggingface", style, tower.model_types[0], prefix=body) for style in tower.styles]
    layout = min(layouts, key=lambda layout: len(bind_stored(rules(layout, tower), source.tensors)[1]))
    checkpoint = huggingface.bind(
        source,
        layout,
        rules(layout, tower),
        hints,
        ignored,
        anchor=anchor,
        config=config,
        defaults=tower.defaults,
        model_types=tower.model_types,
    )
    _infer(checkpoint, config, tower)
    return checkpoint


def _merged(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the configuration of the tower, with the names of the classes, which the whole model has."""
    whole = dict(config or {})
    inner = next((whole[name] for name in _NESTED if isinstance(whole.get(name), dict)), None)
    if inner is None:
        return whole
    shared = {name: whole.get(name) for name in ("architectures", "id2label")}
    return {**inner, **shared, "model_type": inner.get("model_type", whole.get("model_type"))}


def _infer(checkpoint: Checkpoint, config: dict[str, Any], tower: Tower) -> None:
    """Add the arguments that the type and its configuration determine."""
    found, path = checkpoint.arguments, checkpoint.path
    top, registers = found["include_top"], found["num_registers"]
    found["pooling"] = tower.poolings[bool(top)]
    if tower is SIGLIP and not top and "MAPHead_0/probe" not in checkpoint.shapes:
        found["pooling"] = "gap"
    if found["mlp"] == "swiglu":
        found["activation"] = "silu"  # `hidden_act` is that of the plain MLP in DINOv2
        if tower is DINOV3 and config.get("hidden_act", "silu") not in ("silu", "swish"):
            raise CheckpointError(
                f"{path}: a gated MLP with hidden_act={str(config['hidden_act'])[:40]!r} is not known."
            )
    checkpoint.resize_method = "antialiased" if tower is DINOV2 and registers else tower.resize_method
    gated = config.get("use_gated_mlp", config.get("use_swiglu_ffn"))
    biases = dict(zip(("query_bias", "key_bias", "value_bias"), _torch.biases(found["qkv_bias"]), strict=True))
    stated = {
        "num_registers": config.get("num_register_tokens"),
        "mlp": None if gated is None else "swiglu" if gated else "mlp",
        **{name: config.get(name) for name in biases},
    }
    architecture.check_stated(stated, {**found, **biases}, f"{path}: config.json")
    if tower is DINOV3:
        found |= {"position_embedding": "rope2d", "rope_base": _rope_base(config, path)}
        for name, default in (("shift", None), ("jitter", None), ("rescale", 2.0)):
            found[f"rope_{name}"] = config.get(f"pos_embed_{name}", default if config else None)
    for name, value in config.items():
        if _CHANGES.search(name) and not _KNOWN_FIELDS.fullmatch(name) and value not in (None, False):
            raise CheckpointError(f"{path}: {name}={str(value)[:40]!r} of its configuration is not known.")
    size, patch = stated_size(found.get("image_size")), stated_size(found["patch_size"])
    if size and patch and patch[0] <= size[0] and patch[1] <= size[1]:  # the rest at the borders is not read
        found["image_size"] = plain((size[0] // patch[0] * patch[0], size[1] // patch[1] * patch[1]))
    if not top:
        checkpoint.allow_any_head()


def _rope_base(config: Mapping[str, Any], path: str) -> float:
    parameters = config.get("rope_parameters") or {}
    if not isinstance(parameters, dict) or parameters.get("rope_type", "default") != "default":
        raise CheckpointError(f"{path}: rope_parameters={str(parameters)[:80]} of its configuration is not supported.")
    base = next((c["rope_theta"] for c in (config, parameters) if c.get("rope_theta") is not None), 100.0)
    return _torch.number(base, 1, 1e9, f"{path}: the configuration's rope_theta")


def _documents(
    config: Config, layout: Layout, class_names: ClassNames, normalization: Normalization, tower: Tower
) -> Files:
    """Return `config.json` and `preprocessor_config.json`."""
    files = huggingface.documents(
        {**config, "image_size": config["image_size"] or 224}, layout, class_names, normalization
    )
    document, gated, registers = files["config.json"], config["mlp"] == "swiglu", config["num_registers"]
    model_type, classes = tower.model_types[0], list(tower.classes)
    if tower is DINOV2:
        document |= {"layerscale_value": config["layer_scale"], "use_swiglu_ffn": gated, "use_mask_token": True}
        width = 1.5 * config["mlp_dim"] if gated else config["mlp_dim"]
        document["mlp_ratio"] = _torch.ratio(int(width), config["hidden_size"])
        del document["intermediate_size"]
        if gated:
            document["hidden_act"] = "gelu"
        if registers:
            model_type, document["num_register_tokens"] = "dinov2_with_registers", registers
            classes = [name.replace("Dinov2", "Dinov2WithRegisters") for name in classes]
    if tower is DINOV3:
        query, key, value = _torch.biases(config["qkv_bias"])
        document |= {"query_bias": query, "key_bias": key, "value_bias": value, "proj_bias": True, "mlp_bias": True}
        document |= {"use_gated_mlp": gated, "num_register_tokens": registers, "rope_theta": config["rope_base"]}
        document["layerscale_value"] = config["layer_scale"]
        document |= {f"pos_embed_{name}": config[f"rope_{name}"] for name in ("shift", "jitter", "rescale")}
        del document["qkv_bias"]
    if tower is SIGLIP:
        document["vision_use_head"] = config["pooling"] == "map"
        del document["qkv_bias"]
        if config["include_top"]:
            model_type = "siglip"
            names = ("id2label", "label2id")
            inner = {name: value for name, value in document.items() if name not in names}
            labels = {name: document[name] for name in names}
            document = {"vision_config": {**inner, "model_type": "siglip_vision_model"}, **labels}
    document |= {"model_type": model_type, "architectures": [classes[bool(config["include_top"])]]}
    return {**files, "config.json": document}


def _layout(config: Config, tower: Tower) -> Layout:
    return _fit(Layout("huggingface"), config, tower)


def _fit(layout: Layout, config: Config, tower: Tower) -> Layout:
    own = tower.prefix.replace(".", "_with_registers.") if config["num_registers"] else tower.prefix
    kept = layout.prefix if layout.prefix == own else ""  # headless files have it or not
    style = layout.style if layout.style in tower.styles and layout.position == tower.model_types[0] else "published"
    prefix = own if config["include_top"] else kept
    return dataclasses.replace(layout, style=style, position=tower.model_types[0], prefix=prefix)


def _limits(config: Config, tower: Tower) -> Iterator[str]:
    without, top = tower.poolings
    if config["include_top"] and config["pooling"] != top:
        yield f"its classifiers have pooling={top!r}"
    # The files of a tower hold its tokens; a mean of them is as well computed from these.
    if not config["include_top"] and config["pooling"] not in (without, "gap", None):
        yield f"its towers have pooling={without!r} or the mean of the tokens"
    if tower is DINOV2 and config["mlp"] == "swiglu" and config["mlp_dim"] % 8:
        yield "the width of its gated MLPs is a multiple of 8"
    yield from huggingface.square_patches(config)


def _family(tower: Tower, values: Mapping[str, Any]) -> Family:
    renamed = {name.partition(":")[0]: name for name in reversed(list(tower.styles))}
    return Family(
        "huggingface",
        functools.partial(_recognize, tower=tower),
        functools.partial(rules, tower=tower),
        resize_method=tower.resize_method,
        input_normalization=tower.input_normalization,
        writing=Writing(
            values={
                "activation": _torch.WRITTEN_ACTIVATIONS,
                "layer_norm_epsilon": ANY,
                "pooling": ANY,
                "class_token": (tower is not SIGLIP,),
                **values,
            },
            limits=functools.partial(_limits, tower=tower),
            layout=functools.partial(_layout, tower=tower),
            fit=functools.partial(_fit, tower=tower),
            styles={n: functools.partial(dataclasses.replace, style=s) for n, s in renamed.items()},
            tensors="safetensors",
            documents=functools.partial(_documents, tower=tower),
        ),
    )


_DINOV2 = {"layer_scale": GIVEN, "image_size": GIVEN, "num_registers": ANY, "mlp": ANY, "qkv_bias": (True, False)}
_DINOV3 = {
    **dict.fromkeys(("num_registers", "mlp", "qkv_bias", "rope_base"), ANY),
    "layer_scale": GIVEN,
    "position_embedding": ("rope2d",),
    "include_top": (False,),
}
FAMILIES = (_family(DINOV2, _DINOV2), _family(DINOV3, _DINOV3), _family(SIGLIP, {"image_size": GIVEN}))
