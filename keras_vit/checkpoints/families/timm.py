"""The families of timm: Vision Transformers, hybrids and DINOv3 (timm's class `Eva`), and how to write them.

References:
    - [timm](https://github.com/huggingface/pytorch-image-models), `vision_transformer.py` and `eva.py`
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from keras_vit.checkpoints.checkpoint import Layout
from keras_vit.checkpoints.families import _torch, timm_reading
from keras_vit.checkpoints.families._timm import rules
from keras_vit.checkpoints.families.family import ANY, GIVEN, Config, Family, Files, Names, Writing
from keras_vit.models.normalization import IMAGENET, Normalization
from keras_vit.util import checks

_ALIGNED = 8  # the widths of DINOv3's gated MLPs are multiples of this number


def _documents(config: Config, layout: Layout, class_names: Names, normalization: Normalization) -> Files:
    """Return `config.json`."""
    height, width = checks.size_pair("image_size", config["image_size"])
    pool = {"gap": "avg"}.get(config["pooling"], config["pooling"])
    classes = config["classes"] if config["include_top"] else 0
    arguments: dict[str, Any] = {
        "img_size": [height, width],
        **{name: config[argument] for name, argument in timm_reading.SHOWN.items()},
        "num_heads": config["num_heads"],
        "mlp_ratio": _torch.ratio(config["mlp_dim"] * (2 if layout.style == "packed" else 1), config["hidden_size"]),
        "qkv_bias": config["qkv_bias"],
        "global_pool": pool,
        "class_token": bool(config["class_token"]),
        "act_layer": config["activation"],
    }
    if config["layer_scale"] is not None:
        arguments["init_values"] = config["layer_scale"]
    if pool == "avg":
        arguments["fc_norm"] = config["norm_after_pooling"]
    if config["pool_prefix_tokens"] or pool == "map":
        arguments["pool_include_prefix"] = True
    if config["distillation_token"]:
        arguments.pop("class_token")  # timm's distilled class always has both tokens
    else:
        arguments["reg_tokens"] = config["num_registers"]
        arguments["no_embed_class"] = layout.slots == "none"
    if config["position_embedding"] == "none":
        arguments["pos_embed"] = "none"
    result: dict[str, Any] = {
        "architecture": _registered_name(config),
        "num_classes": classes,
        "num_features": config["hidden_size"],
        "global_pool": pool,
        "model_args": arguments,
        "pretrained_cfg": {
            "num_classes": classes,
            "input_size": [config["channels"], height, width],
            "fixed_input_size": True,
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": "squash",
            "mean": list(normalization[0]),
            "std": list(normalization[1]),
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
    }
    if class_names is not None:
        result["label_names"] = list(class_names)
    return {"config.json": result}


def _registered_name(config: Config) -> str:
    """Return the name of a registered model of the same class. `model_args` describes the differences."""
    blocks = config["resnet_blocks"]
    if blocks is not None:
        # The registered function builds the backbone; `model_args` cannot describe a backbone.
        named = {(): "vit_tiny_r_s16_p8_224", (2, 2, 2, 2): "vit_small_r26_s32_224", (3, 4, 9): "vit_base_r50_s16_224"}
        named[(3, 4, 6, 3)] = "vit_large_r50_s32_224"
        return named.get(tuple(blocks), "vit_base_resnet50_hybrid")
    if config["mlp"] == "swiglu":
        return "vit_giant_patch14_reg4_dinov2" if config["num_registers"] else "vit_giant_patch14_dinov2"
    return "deit_base_distilled_patch16_224" if config["distillation_token"] else "vit_base_patch16_224"


def _fit(layout: Layout, config: Config) -> Layout:
    slots = "none" if config["num_registers"] and layout.slots == "prefix" else layout.slots
    style = "stages" if config["resnet_blocks"] else "packed" if config["mlp"] == "swiglu" else ""
    return dataclasses.replace(layout, slots=slots, style=style)


def _limits(config: Config) -> Iterator[str]:
    if config["distillation_token"] is True and not config["include_top"]:
        yield _torch.HEADLESS_DEIT
    if config["mlp"] == "swiglu" and not config["class_token"]:
        yield "its gated models have a class token"
    if config["distillation_token"] == "unused":
        yield "its distillation token always has a head"
    if config["distillation_token"] and config["num_registers"]:
        yield "it does not combine a distillation token with registers"


_VIT = Family(
    "timm",
    timm_reading.recognize,
    rules,
    resize_method="antialiased",
    writing=Writing(
        values={
            "activation": _torch.WRITTEN_ACTIVATIONS,
            "image_size": GIVEN,
            "layer_norm_epsilon": (1e-6,),
            "pooling": ("token", "gap", "map"),
            "position_embedding": ("learned", "none"),
            "resnet_numerics": ("timm",),
            "qkv_bias": (True, False),
            **dict.fromkeys(("resnet_blocks", "distillation_token", "num_registers", "layer_scale"), ANY),
            **dict.fromkeys(("norm_after_pooling", "pool_prefix_tokens", "mlp"), ANY),
        },
        limits=_limits,
        layout=lambda config: Layout("timm", slots="none" if config["num_registers"] else "prefix"),
        fit=_fit,
        tensors="safetensors",
        documents=_documents,
    ),
    layouts=(Layout("timm"), Layout("timm", style="packed")),
)


def _dinov3_documents(config: Config, layout: Layout, class_names: Names, normalization: Normalization) -> Files:
    """Return `config.json`."""
    any_size = {**config, "image_size": config["image_size"] or 256}
    files = _documents(any_size, layout, class_names, normalization)
    document = files["config.json"]
    arguments: dict[str, Any] = document["model_args"]
    for name in ("qkv_bias", "act_layer", "fc_norm", "no_embed_class", "pos_embed", "class_token"):
        arguments.pop(name, None)
    arguments["num_reg_tokens"] = arguments.pop("reg_tokens")
    arguments["rope_temperature"] = config["rope_base"]
    for name in ("shift", "jitter", "rescale"):
        if config[f"rope_{name}"]:
            arguments[f"rope_{name}_coords"] = config[f"rope_{name}"]
    name = "vit_small_plus_patch16_dinov3" if config["mlp"] == "swiglu" else "vit_small_patch16_dinov3"
    document["architecture"] = f"{name}_qkvb" if any(_torch.biases(config["qkv_bias"])) else name
    return files


def _dinov3_limits(config: Config) -> Iterator[str]:
    gated = config["mlp"] == "swiglu"
    if (config["activation"] == "silu") != gated:
        yield "its plain MLPs use GELU, and its gated MLPs use SiLU"
    if gated and config["mlp_dim"] % _ALIGNED:
        yield f"the width of its gated MLPs is a multiple of {_ALIGNED}"


_DINOV3 = Family(
    "timm",
    timm_reading.recognize,
    rules,
    input_normalization=IMAGENET,
    writing=Writing(
        values={
            "position_embedding": ("rope2d",),
            "layer_norm_epsilon": (1e-5,),
            "activation": ("gelu", "silu"),
            "qkv_bias": ([True, False, True], False),
            "pooling": ("token", "gap"),
            "class_token": (True,),
            "layer_scale": GIVEN,
            **dict.fromkeys(("num_registers", "mlp", "rope_base"), ANY),
        },
        limits=_dinov3_limits,
        layout=lambda config: Layout("timm", style="eva"),
        fit=lambda layout, config: dataclasses.replace(layout, style="eva"),
        tensors="safetensors",
        documents=_dinov3_documents,
    ),
    layouts=(Layout("timm", style="eva"),),
)
FAMILIES = (_VIT, _DINOV3)
