"""timm's Vision Transformers and hybrids: a directory with `model.safetensors` and `config.json`.

References:
    - [timm](https://github.com/huggingface/pytorch-image-models), `vision_transformer.py` and its hybrid
"""

import math
from collections.abc import Mapping
from typing import Any

from absl import logging

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import _timm_architectures as architectures
from keras_vit.checkpoints.families import _torch
from keras_vit.checkpoints.families._timm import STEM, rules
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.position_grid import grid_of, has_slots, is_square, model_grid, stated_grids, stated_size
from keras_vit.models.config import plain

_TABLE = architecture.TABLE
# Arguments of timm's models that are read, do not change what a model computes, or matter only in training.
_KNOWN = (
    *(
        "img_size",
        "patch_size",
        "in_chans",
        "num_classes",
        "global_pool",
        "embed_dim",
        "depth",
        "num_heads",
        "mlp_ratio",
    ),
    *("qkv_bias", "class_token", "no_embed_class", "reg_tokens", "num_reg_tokens", "fc_norm", "pool_include_prefix"),
    *("act_layer", "init_values", "pos_embed", "dynamic_img_size", "strict_img_size", "fix_init", "weight_init"),
    *(
        "rope_type",
        "rope_rotate_half",
        "rope_grid_offset",
        "use_rot_pos_emb",
        "rope_temperature",
        "rope_rescale_coords",
    ),
    *("rope_jitter_coords", "rope_shift_coords", "swiglu_align_to", "output_fmt", "img_dtype"),
)


def recognize(source: TensorSource, hints: Hints) -> Checkpoint | None:
    """Return what `source` holds, or None if it is no timm ViT."""
    body = _torch.find_body(source, "patch_embed.proj.weight")
    if body is None or not any(name.startswith(f"{body}blocks.") for name in source.tensors):
        return None
    config, arguments = _config(source)
    size = _image_size(config, arguments)
    slots = _slots(source, body, arguments, size, hints)
    layout = Layout("timm", style=_style(source, body), prefix=body, slots=slots)
    heads = arguments.get("num_heads", (architectures.facts_of(architectures.name_of(config)) or {}).get("num_heads"))
    stated = None if heads is None else ("num_heads", heads)
    checkpoint = _torch.bind(source, layout, rules(layout), hints, f"{body}patch_embed.proj.weight", stated)
    _infer(checkpoint, config, arguments, hints.wanted)
    if size is not None and (_TABLE not in checkpoint.shapes or "img_size" in arguments or _fits(checkpoint, size)):
        checkpoint.arguments["image_size"] = plain(size)
    return checkpoint


def _style(source: TensorSource, body: str) -> str:
    """Return the style of the names, which the shapes of a gated MLP decide, too."""
    names = source.tensors
    if any(name.startswith(f"{body}{STEM}.stem.") for name in names):
        return "stages"
    if f"{body}blocks.0.gamma_1" in names or f"{body}blocks.0.mlp.fc1_g.weight" in names:
        return "eva"
    first, second = (
        names[name].shape if (name := f"{body}blocks.0.mlp.fc{index}.weight") in names else () for index in (1, 2)
    )
    return "packed" if len(first) == len(second) == 2 and first[0] == 2 * second[1] else ""


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
    _check_config(config, arguments, found, path, checkpoint.layout.style == "packed")
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
    for name, value in arguments.items():
        if value is not False and name not in _KNOWN and not name.endswith("drop_rate"):
            raise CheckpointError(f"{path}: timm models with {name}={str(value)[:40]} are not supported.")
    found |= architectures.infer(checkpoint, config, arguments, wanted)
    found["resnet_numerics"] = "timm"
    if not found["include_top"]:
        checkpoint.allow_any_head()
    checkpoint.class_names = _torch.label_names(checkpoint.source, found["classes"])
    stated = config.get("pretrained_cfg", config)  # older configurations have its entries themselves
    if isinstance(stated, dict):
        pair = stated.get("mean"), stated.get("std")
        checkpoint.input_normalization = _torch.input_normalization(*pair, f"{path}: config.json")


def _check_config(
    config: dict[str, Any], arguments: dict[str, Any], found: dict[str, Any], path: str, packed: bool
) -> None:
    """Refuse tensors that are not those of the configuration."""
    stated = {"hidden_size": arguments.get("embed_dim"), "num_layers": arguments.get("depth")}
    if found["resnet_blocks"] is None:
        stated["channels"] = arguments.get("in_chans")
        size = stated_size(arguments.get("patch_size"))
        stated["patch_size"] = plain(size) if size else arguments.get("patch_size")
    keys = {"class_token": "class_token", "num_registers": "reg_tokens", "qkv_bias": "qkv_bias"}
    keys |= {"num_registers": "num_reg_tokens"} if "num_reg_tokens" in arguments else {}
    stated |= {argument: arguments.get(key) for argument, key in keys.items()}
    if isinstance(found["qkv_bias"], tuple) and stated["qkv_bias"] is True:
        stated["qkv_bias"] = found["qkv_bias"]  # that of the key is a constant zero
    stated["classes"] = config.get("num_classes")
    ratio = arguments.get("mlp_ratio")
    if isinstance(ratio, (int, float)) and 0 < ratio < 2**20:
        # One kernel has both halves of a gated MLP.
        stated["mlp_dim"] = int(found["hidden_size"] * ratio) // (2 if packed else 1)
    architecture.check_stated(stated, found, f"{path}: config.json")
    if "img_size" in arguments and stated_size(arguments["img_size"]) is None:
        raise CheckpointError(f"{path}: config.json has an invalid img_size={str(arguments['img_size'])[:60]}.")
