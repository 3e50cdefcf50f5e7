"""timm's Vision Transformers and hybrids: a directory with `model.safetensors` and `config.json`.

References:
    - [timm](https://github.com/huggingface/pytorch-image-models), `vision_transformer.py` and its hybrid
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from absl import logging

from keras_vit import _checks
from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import _timm_activations, _torch
from keras_vit.checkpoints.families._timm import STEM, rules
from keras_vit.checkpoints.families.family import ANY, Config, Family, Files, Names, Writing
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.position_grid import grid_of, has_slots, is_square, model_grid, stated_grids, stated_size
from keras_vit.models.config import plain
from keras_vit.models.normalization import Normalization

_TABLE = architecture.TABLE


def recognize(source: TensorSource, hints: Hints) -> Checkpoint | None:
    """Return what `source` holds, or None if it is no timm ViT."""
    body = _torch.find_body(source, "patch_embed.proj.weight")
    if body is None or not any(name.startswith(f"{body}blocks.") for name in source.tensors):
        return None
    config, arguments = _config(source)
    staged = any(name.startswith(f"{body}{STEM}.stem.") for name in source.tensors)
    size = _image_size(config, arguments)
    slots = _slots(source, body, arguments, size, hints)
    layout = Layout("timm", style="stages" if staged else "", prefix=body, slots=slots)
    stated = ("num_heads", arguments["num_heads"]) if "num_heads" in arguments else None
    checkpoint = _torch.bind(source, layout, rules(layout), hints, f"{body}patch_embed.proj.weight", stated)
    _infer(checkpoint, config, arguments, hints.wanted)
    if size is not None and (_TABLE not in checkpoint.shapes or "img_size" in arguments or _fits(checkpoint, size)):
        checkpoint.arguments["image_size"] = plain(size)
    return checkpoint


def _fits(checkpoint: Checkpoint, size: tuple[int, int]) -> bool:
    """Return whether images of a size have as many patches as the position table."""
    grid = grid_of({**checkpoint.arguments, "image_size": size})
    return grid is not None and math.prod(grid) == checkpoint.num_positions


def _config(source: TensorSource) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configuration and the arguments of the timm model in it."""
    config = source.config or {}
    if not config and not source.metadata:
        _torch.note_missing_config(source.path)
    arguments = config.get("model_args")
    arguments = {k: v for k, v in arguments.items() if v is not None} if isinstance(arguments, dict) else {}
    if "global_pool" in config:
        arguments.setdefault("global_pool", config["global_pool"])
    return config, arguments


def _image_size(config: dict[str, Any], arguments: dict[str, Any]) -> tuple[int, int] | None:
    """Return the image size: the model's argument, else that of the pretraining, which may have been another."""
    if "img_size" in arguments:
        return stated_size(arguments["img_size"])
    pretrained = config.get("pretrained_cfg")
    size = pretrained.get("input_size") if isinstance(pretrained, dict) else None
    return stated_size(size[1:]) if isinstance(size, list) and len(size) == 3 else None


def _slots(source: TensorSource, body: str, arguments: dict[str, Any], size: Any, hints: Hints) -> str:
    """Return which tokens have entries in the position table: "all", the "prefix" without registers, or "none"."""
    shapes = {name.removeprefix(body): tensor.shape for name, tensor in source.tensors.items()}
    table, registers, patch = (shapes.get(f"{n}", ()) for n in ("pos_embed", "reg_token", "patch_embed.proj.weight"))
    num_registers = registers[1] if len(registers) == 3 else 0
    prefix = sum(name in shapes for name in ("cls_token", "dist_token")) + num_registers
    if len(table) != 3 or not prefix:
        return "prefix"
    with_slots = "all" if num_registers else "prefix"
    if "no_embed_class" in arguments:
        return "none" if arguments["no_embed_class"] else with_slots
    # The stride of a hybrid depends on its stages, which are not known yet.
    hybrid = any(name.startswith(STEM) for name in shapes) or len(patch) != 4 or 0 in patch
    stub = {"patch_size": patch[2:], "resnet_blocks": None, "image_size": size}
    grids = [hints.grid, stated_size(source.metadata.get("grid"))]
    if not hybrid:
        grids = [*stated_grids(source, hints, stub), *model_grid(hints, stub)]
    known = has_slots(table[1], prefix, [grid for grid in grids if grid])
    if known is None:
        squares = is_square(table[1]), is_square(table[1] - prefix)
        if squares[0] == squares[1]:
            raise CheckpointError(
                f"{source.path}: {table[1]} position embeddings with {prefix} prefix tokens can be read in two ways. "
                "Pass grid=(height, width), in patches, or put the model's config.json beside the file."
            )
        known = squares[1]
        logging.info(
            "%s does not say whether its %d position embeddings include prefix tokens: a square grid is assumed.",
            source.path,
            table[1],
        )
    return with_slots if known else "none"


def _infer(
    checkpoint: Checkpoint, config: dict[str, Any], arguments: dict[str, Any], wanted: Mapping[str, Any]
) -> None:
    path, found = checkpoint.path, checkpoint.arguments
    _check_config(config, arguments, found, path)
    pool = arguments.get("global_pool")
    if pool in ("avg", "token", "map"):
        found["pooling"] = {"avg": "gap"}.get(pool, pool)
    elif found["norm_after_pooling"]:
        found["pooling"] = "gap"
    if pool not in ("avg", "token", "map", "", None):
        raise CheckpointError(f"{path}: global_pool={str(pool)[:40]!r} is not supported; known are token, avg and map.")
    has_prefix = found["class_token"] or found["distillation_token"] or found["num_registers"]
    if found["pooling"] == "gap":
        found["pool_prefix_tokens"] = bool(arguments.get("pool_include_prefix", False))
    elif found["pooling"] == "map" and has_prefix and not arguments.get("pool_include_prefix", False):
        raise CheckpointError(
            f"{path}: timm's attention pooling leaves out the class token and registers, unless its configuration has "
            "pool_include_prefix=True. Here it attends to all tokens."
        )
    for name in ("qk_norm", "pre_norm", "dynamic_img_pad"):
        if arguments.get(name, False) is not False:
            raise CheckpointError(f"{path}: timm models with {name}={str(arguments[name])[:40]} are not supported.")
    found["activation"] = _timm_activations.infer(checkpoint, config, arguments, found, wanted)
    found["layer_norm_epsilon"] = 1e-6
    found["resnet_numerics"] = "timm"
    if not found["include_top"] and pool is None:
        checkpoint.allow_any_head()  # an encoder alone, such as that of a masked autoencoder
    checkpoint.class_names = _torch.label_names(checkpoint.source, found["classes"])
    stated = config.get("pretrained_cfg", config)  # older configurations have its entries themselves
    if isinstance(stated, dict):
        pair = stated.get("mean"), stated.get("std")
        checkpoint.input_normalization = _torch.input_normalization(*pair, f"{path}: config.json")


def _check_config(config: dict[str, Any], arguments: dict[str, Any], found: dict[str, Any], path: str) -> None:
    """Refuse tensors that are not those of the configuration."""
    stated = {"hidden_size": arguments.get("embed_dim"), "num_layers": arguments.get("depth")}
    if found["resnet_blocks"] is None:
        stated["channels"] = arguments.get("in_chans")
        size = stated_size(arguments.get("patch_size"))
        stated["patch_size"] = plain(size) if size else arguments.get("patch_size")
    keys = {"class_token": "class_token", "num_registers": "reg_tokens", "qkv_bias": "qkv_bias"}
    stated |= {argument: arguments.get(key) for argument, key in keys.items()}
    stated["classes"] = config.get("num_classes")
    ratio = arguments.get("mlp_ratio")
    if isinstance(ratio, (int, float)) and 0 < ratio < 2**20:
        stated["mlp_dim"] = int(found["hidden_size"] * ratio)
    architecture.check_stated(stated, found, f"{path}: config.json")
    if "img_size" in arguments and stated_size(arguments["img_size"]) is None:
        raise CheckpointError(f"{path}: config.json has an invalid img_size={str(arguments['img_size'])[:60]}.")


def _documents(config: Config, layout: Layout, class_names: Names, normalization: Normalization) -> Files:
    """Return `config.json`."""
    height, width = _checks.size_pair("image_size", config["image_size"])
    pool = {"gap": "avg"}.get(config["pooling"], config["pooling"])
    classes = config["classes"] if config["include_top"] else 0
    arguments: dict[str, Any] = {
        "img_size": [height, width],
        "patch_size": config["patch_size"],
        "in_chans": config["channels"],
        "embed_dim": config["hidden_size"],
        "depth": config["num_layers"],
        "num_heads": config["num_heads"],
        "mlp_ratio": _ratio(config["mlp_dim"], config["hidden_size"]),
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
        arguments.pop("class_token")  # the distilled class has both tokens always
    else:
        arguments["reg_tokens"] = config["num_registers"]
        arguments["no_embed_class"] = layout.slots == "none"
    if config["position_embedding"] == "none":
        arguments["pos_embed"] = "none"
    architecture_name = _registered_name(config)
    result: dict[str, Any] = {
        "architecture": architecture_name,
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


def _ratio(mlp_dim: int, hidden_size: int) -> float:
    """Return a ratio that timm turns into `mlp_dim`: it computes `int(hidden_size * ratio)`, with rounding errors."""
    ratio = mlp_dim / hidden_size
    return ratio if int(hidden_size * ratio) == mlp_dim else (mlp_dim + 0.5) / hidden_size


def _registered_name(config: Config) -> str:
    """Return the registered model whose class builds this one; `model_args` says the rest."""
    blocks = config["resnet_blocks"]
    if blocks is not None:
        # Its function builds the backbone, which arguments cannot describe.
        named = {(): "vit_tiny_r_s16_p8_224", (2, 2, 2, 2): "vit_small_r26_s32_224", (3, 4, 9): "vit_base_r50_s16_224"}
        named[(3, 4, 6, 3)] = "vit_large_r50_s32_224"
        return named.get(tuple(blocks), "vit_base_resnet50_hybrid")
    return "deit_base_distilled_patch16_224" if config["distillation_token"] else "vit_base_patch16_224"


def _fit(layout: Layout, config: Config) -> Layout:
    slots = "none" if config["num_registers"] and layout.slots == "prefix" else layout.slots
    return dataclasses.replace(layout, slots=slots, style="stages" if config["resnet_blocks"] else "")


FAMILY = Family(
    "timm",
    recognize,
    rules,
    resize_method="antialiased",
    writing=Writing(
        values={
            "activation": _torch.WRITTEN_ACTIVATIONS,
            "layer_norm_epsilon": (1e-6,),
            "pooling": ("token", "gap", "map"),
            "position_embedding": ("learned", "none"),
            "resnet_numerics": ("timm",),
            **dict.fromkeys(("resnet_blocks", "distillation_token", "num_registers", "qkv_bias", "layer_scale"), ANY),
            **dict.fromkeys(("norm_after_pooling", "pool_prefix_tokens"), ANY),
        },
        conditions=(
            _torch.HEADLESS_DEIT,
            (
                lambda config: config["distillation_token"] == "unused",
                "its distillation token always has a head",
            ),
            (
                lambda config: config["distillation_token"] and config["num_registers"],
                "it has no distillation token beside registers",
            ),
            _torch.ANY_SIZE,
        ),
        layout=lambda config: Layout("timm", slots="none" if config["num_registers"] else "prefix"),
        fit=_fit,
        tensors="safetensors",
        documents=_documents,
    ),
)
