"""Read timm's Vision Transformers and hybrids from a directory with `model.safetensors` and `config.json`.

A configuration names a registered architecture and lists overrides. Some arguments can only be inferred from the name.

References:
    - [timm](https://github.com/huggingface/pytorch-image-models), `vision_transformer.py`, its hybrid, and `eva.py`
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from absl import logging

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout
from keras_vit.checkpoints.families import _preprocessing, _torch
from keras_vit.checkpoints.families._timm import STEM, rules
from keras_vit.checkpoints.formats.tensors import CheckpointError, TensorSource
from keras_vit.checkpoints.position_grid import grid_of, has_slots, is_square, model_grid, stated_grids, stated_size
from keras_vit.models.config import plain

# Supported arguments of timm's models: arguments that this module reads, and arguments that only affect training or do
# not change the outputs.
_KNOWN = re.compile(
    r"img_size|patch_size|in_chans|num_classes|global_pool|embed_dim|depth|num_heads|mlp_ratio|qkv_bias|class_token|"
    r"no_embed_class|reg_tokens|num_reg_tokens|fc_norm|pool_include_prefix|act_layer|init_values|pos_embed|rope_type|"
    r"dynamic_img_size|strict_img_size|fix_init|weight_init|rope_rotate_half|rope_grid_offset|use_rot_pos_emb|"
    r"rope_temperature|rope_(rescale|jitter|shift)_coords|swiglu_align_to|output_fmt|img_dtype|.*drop_rate"
)
# Arguments of timm's models that can be inferred from tensors, and the corresponding arguments of this package.
SHOWN = {"embed_dim": "hidden_size", "depth": "num_layers", "in_chans": "channels", "patch_size": "patch_size"}
# Arguments of timm's `Eva` that change the rotation of positions, and their values in DINOv3.
_ROTATION = {"rope_type": "dinov3", "rope_rotate_half": True, "rope_grid_offset": 0.5, "use_rot_pos_emb": True}
_GELU, _TANH = {"activation": "gelu"}, {"activation": "gelu_tanh"}
_SWIGLU = {"activation": "silu", "mlp": "swiglu"}
_DINOV3 = {"activation": "gelu", "layer_norm_epsilon": 1e-5, "position_embedding": "rope2d"}
# Arguments of this package that cannot be inferred from tensors, by architecture.
_ARCHITECTURES: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"vit_(small|base|large)_patch14_(reg4_)?dinov2", _GELU),
    (r"vit_giant_patch14_(reg4_)?dinov2", _SWIGLU),
    (r"vit_(small|base|large)_patch16_dinov3(_qkvb)?", _DINOV3),
    (r"vit_(small|large|huge)_plus_patch16_dinov3(_qkvb)?", {**_DINOV3, **_SWIGLU}),
    (r"vit_7b_patch16_dinov3", {**_DINOV3, **_SWIGLU, "num_heads": 32}),
    (r"vit_base_patch16_siglip_(gap_)?(224|256|384|512)", _GELU),
    (r"vit_large_patch16_siglip_(gap_)?(256|384)", _GELU),
    (r"vit_so400m_patch14_siglip_(gap_)?(224|378|384|448|896)", _GELU),
    (r"vit_base_patch32_siglip_(gap_)?256", _TANH),
    (r"vit_large_patch16_siglip_(gap_)?512", _TANH),
    (r"vit_so400m_patch16_siglip_(gap_)?(256|384|512)", _TANH),
    (r"vit_giantopt_patch16_siglip_(gap_)?(256|384)", {**_TANH, "num_heads": 16}),
    (r"vit_(medium_patch16_gap_(240|256|384)|betwixt_patch16_gap_256|(base|giant)_patch16_gap_224)", _GELU),
    (r"vit_huge_(patch14_gap_224|patch16_gap_448)", _GELU),
    (r"test_vit[23]?", _GELU),
    (r".*_clip_quickgelu_.*", {"activation": "quick_gelu"}),
)
_EVA_BIASES = (True, False, True)  # the key's bias is a constant zero
# Arguments of timm's models that are set if certain tensors exist, and the corresponding arguments of this package.
_PRESENT = {"fc_norm": "norm_after_pooling", "init_values": "layer_scale", "pos_embed": "position_embedding"}
_PRESENT |= {name: name for name in ("class_token", "qkv_bias")}
# Arguments of all models of an architecture, unless the configuration overrides the argument.
_ALWAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"vit_.*_dinov[23](_qkvb)?", {"class_token": True, "layer_scale": True}),
    (r"(vit|deit3?)_(tiny|small|base|large|huge|giant|gigantic)_patch\d+_\d{3}(_\w+)?", {"class_token": True}),
    (r".*_reg1_.*", {"num_registers": 1}),
    (r".*_reg4_.*|vit_.*_dinov3(_qkvb)?", {"num_registers": 4}),
    (r".*_miil|.*_rpn_224|vit_(medium|betwixt)_patch16_gap_\d+|vit_so150m2_.*", {"qkv_bias": None}),
    (r"vit_.*_dinov3_qkvb", {"qkv_bias": _EVA_BIASES}),
)
_PREFIX_TOKENS = ("class_token", "distillation_token", "num_registers")
# An architecture that normalizes after attention and MLP. Its tensors look like the tensors of other architectures.
_OTHER_BLOCKS = "vit_base_patch16_rpn_224"
_PASS = "Put the config.json of a registered architecture next to the file, or pass "
_ADVICE = {
    "activation": "models without class token and registers have different activations. "
    f"{_PASS}activation='gelu' (most models) or 'gelu_tanh' (some SigLIP models) to keras_vit.model_from_checkpoint.",
    "position_embedding": "its tensors do not show how the model encodes positions. "
    f"{_PASS}position_embedding='rope2d' (DINOv3) to keras_vit.model_from_checkpoint.",
    "mlp": "its tensors do not show which half of the first kernel is the gate. "
    f"{_PASS}mlp='swiglu' (the gate first, with SiLU) to keras_vit.model_from_checkpoint.",
}


def recognize(source: TensorSource, hints: Hints) -> Checkpoint | None:
    """Return the checkpoint in `source`, or None if `source` is not a timm Vision Transformer."""
    body = _torch.find_body(source, "patch_embed.proj.weight", hints)
    if body is None or not any(name.startswith(f"{body}blocks.") for name in source.tensors):
        return None
    config, arguments = _config(source)
    name = str(config.get("architecture") or "").partition(".")[0]  # without the tag of the weights
    facts = next((dict(facts) for pattern, facts in _ARCHITECTURES if re.fullmatch(pattern, name)), {})
    size = _image_size(config, arguments)
    slots = _slots(source, body, arguments, size, hints)
    layout = Layout("timm", style=_style(source, body), prefix=body, slots=slots)
    heads = arguments.get("num_heads", facts.pop("num_heads", None))
    stated = None if heads is None else ("num_heads", heads)
    checkpoint = _torch.bind(source, layout, rules(layout), hints, f"{body}patch_embed.proj.weight", stated)
    found, path = checkpoint.arguments, source.path
    _check_config(config, arguments, checkpoint, name, hints.wanted)
    _infer_pooling(arguments, found, path)
    found |= _infer_block(checkpoint, name, facts, arguments, hints.wanted)
    if layout.style == "eva":
        found |= _rotation(arguments, path)
    found["resnet_numerics"] = "timm"
    if not found["include_top"]:
        checkpoint.allow_any_head()
    checkpoint.class_names = _torch.label_names(source, found["classes"])
    pretrained = config.get("pretrained_cfg", config)  # older configurations are flat
    if isinstance(pretrained, dict):
        pair = pretrained.get("mean"), pretrained.get("std")
        checkpoint.input_normalization = _preprocessing.input_normalization(*pair, f"{path}: config.json")
        checkpoint.resizing = _preprocessing.of_timm(pretrained)
    no_table = architecture.TABLE not in checkpoint.shapes
    if size is not None and (no_table or "img_size" in arguments or _fits(checkpoint, size)):
        found["image_size"] = plain(size)
    return checkpoint


def _style(source: TensorSource, body: str) -> str:
    """Return the naming style, which also depends on the shapes of the MLP."""
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
    """Return whether images of this size have as many patches as the position table."""
    grid = grid_of({**checkpoint.arguments, "image_size": size})
    return grid is not None and math.prod(grid) == checkpoint.num_positions


def _config(source: TensorSource) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configuration, and the arguments of the timm model in it."""
    config = source.config or {}
    if not config and not source.metadata:
        _torch.note_missing_config(source.path)
    arguments = config.get("model_args")
    arguments = {k: v for k, v in arguments.items() if v is not None} if isinstance(arguments, dict) else {}
    if "global_pool" in config:
        arguments.setdefault("global_pool", config["global_pool"])
    for name, value in arguments.items():
        if value is not False and not _KNOWN.fullmatch(name):
            raise CheckpointError(f"{source.path}: timm models with {name}={str(value)[:40]} are not supported.")
    return config, arguments


def _image_size(config: dict[str, Any], arguments: dict[str, Any]) -> tuple[int, int] | None:
    """Return the model's image size, or if unknown, the image size of pre-training, which may differ."""
    if "img_size" in arguments:
        return stated_size(arguments["img_size"])
    pretrained = config.get("pretrained_cfg")
    size = pretrained.get("input_size") if isinstance(pretrained, dict) else None
    return stated_size(size[1:]) if isinstance(size, list) and len(size) == 3 else None


def _slots(source: TensorSource, body: str, arguments: dict[str, Any], size: Any, hints: Hints) -> str:
    """Return which prefix tokens have entries in the position table: "all", "prefix" (all but registers) or "none"."""
    shapes = {name.removeprefix(body): tensor.shape for name, tensor in source.tensors.items()}
    table, registers, patch = (shapes.get(name, ()) for name in ("pos_embed", "reg_token", "patch_embed.proj.weight"))
    num_registers = registers[1] if len(registers) == 3 else 0
    prefix = sum(name in shapes for name in ("cls_token", "dist_token")) + num_registers
    if len(table) != 3 or not prefix:
        return "prefix"
    with_slots = "all" if num_registers else "prefix"
    if "no_embed_class" in arguments:
        return "none" if arguments["no_embed_class"] else with_slots
    stub = {"patch_size": patch[2:], "resnet_blocks": None, "image_size": size}
    # The stride of a hybrid depends on its stages, which are still unknown.
    hybrid = any(name.startswith(STEM) for name in shapes) or len(patch) != 4 or 0 in patch
    grids = [hints.grid, stated_size(source.metadata.get("grid"))]
    if not hybrid:
        grids = [*stated_grids(source, hints, stub), *model_grid(hints, stub)]
    known = has_slots(table[1], prefix, [grid for grid in grids if grid])
    if known is None:
        known = is_square(table[1] - prefix)
        if known == is_square(table[1]):
            raise CheckpointError(
                f"{source.path}: {table[1]} position embeddings with {prefix} prefix tokens can be read in two ways. "
                "Pass grid=(height, width), in patches, or put the model's config.json next to the file."
            )
        logging.info("%s: its %d position embeddings are assumed to form a square grid.", source.path, table[1])
    return with_slots if known else "none"


def _check_config(
    config: dict[str, Any], arguments: dict[str, Any], checkpoint: Checkpoint, name: str, wanted: Mapping[str, Any]
) -> None:
    """Refuse tensors that disagree with the architecture or its arguments."""
    found, style = checkpoint.arguments, checkpoint.layout.style
    stated = {argument: arguments.get(timm_name) for timm_name, argument in SHOWN.items()}
    if found["resnet_blocks"] is not None:
        del stated["channels"], stated["patch_size"]  # these describe the images, not the feature map
    for timm_name in _PRESENT.keys() & arguments.keys():
        stated[_PRESENT[timm_name]] = arguments[timm_name] not in (False, 0, "none", "")
    always = {key: value for pattern, facts in _ALWAYS if re.fullmatch(pattern, name) for key, value in facts.items()}
    if style == "eva":
        always = {"position_embedding": None, "qkv_bias": None, **always}
        stated["qkv_bias"] = _EVA_BIASES if stated.get("qkv_bias") else stated.get("qkv_bias")
    if arguments.get("global_pool") == "token":
        always["class_token"] = True
    stated["num_registers"] = arguments.get("num_reg_tokens", arguments.get("reg_tokens"))
    stated["classes"] = config.get("num_classes")
    ratio = arguments.get("mlp_ratio")
    if isinstance(ratio, (int, float)) and 0 < ratio < 2**20:
        # One kernel contains both halves of a gated MLP.
        stated["mlp_dim"] = int(found["hidden_size"] * ratio) // (2 if style == "packed" else 1)
    architecture.check_type(checkpoint.source, found, always, stated, wanted)


def _infer_pooling(arguments: dict[str, Any], found: dict[str, Any], path: str) -> None:
    pool, with_prefix = arguments.get("global_pool"), bool(arguments.get("pool_include_prefix", False))
    if pool not in ("avg", "token", "map", "", None):
        raise CheckpointError(f"{path}: global_pool={str(pool)[:40]!r} is not supported. Expected token, avg or map.")
    if pool:
        found["pooling"] = {"avg": "gap"}.get(pool, pool)
    elif found["norm_after_pooling"]:
        found["pooling"] = "gap"
    if found["pooling"] == "gap":
        found["pool_prefix_tokens"] = with_prefix
    elif found["pooling"] == "map" and not with_prefix and any(map(found.get, _PREFIX_TOKENS)):
        raise CheckpointError(
            f"{path}: timm's attention pooling ignores the class token and registers, unless its configuration has "
            "pool_include_prefix=True. In this package, attention pooling attends to all tokens."
        )


def _infer_block(
    checkpoint: Checkpoint, name: str, facts: dict[str, Any], arguments: dict[str, Any], wanted: Mapping[str, Any]
) -> dict[str, Any]:
    """Return arguments from the configuration. Missing arguments come from the architecture or from timm's defaults."""
    path, found, style = checkpoint.path, checkpoint.arguments, checkpoint.layout.style
    if name == _OTHER_BLOCKS:
        raise CheckpointError(f"{path}: timm's {name} normalizes after attention and MLP, which is not supported.")
    if facts.get("mlp", found["mlp"]) != found["mlp"] and found["num_layers"]:
        raise CheckpointError(f"{path}: timm's {name} has mlp={facts['mlp']!r}, but the tensors have {found['mlp']!r}.")
    gated = found["mlp"] == "swiglu"
    if gated:
        facts["activation"] = "silu"
    elif arguments.get("act_layer"):
        facts["activation"] = _torch.activation(arguments["act_layer"], path)
    needed = ""
    if "arguments" not in checkpoint.source.metadata:  # otherwise `recognition` reads the arguments from the metadata
        if style == "packed" and "mlp" not in facts and "mlp" not in wanted:
            needed = "mlp"
        elif style == "eva" and "position_embedding" not in facts:
            needed = "position_embedding"
        elif "activation" not in facts:
            needed = "activation"
    # Registers also occur in architectures without a class token. Without an architecture name, registers therefore
    # imply timm's default activation only if a norm follows the pooling.
    marks = _PREFIX_TOKENS if name or found["norm_after_pooling"] else _PREFIX_TOKENS[:2]
    if needed == "activation" and any(map(found.get, marks)):
        if not name:
            checkpoint.assumed["activation"] = "timm's default"
    elif needed:
        reason = f"timm's architecture {name[:60]!r} is not known" if name else "no config.json names the architecture"
        if wanted.get(needed) is None:
            raise CheckpointError(f"{path}: {reason}, and {_ADVICE[needed]}")
        checkpoint.doubtful[needed] = reason
        facts[needed] = wanted[needed]
    rotated = facts.get("position_embedding") == "rope2d"
    return {"activation": "gelu", "layer_norm_epsilon": _DINOV3["layer_norm_epsilon"] if rotated else 1e-6, **facts}


def _rotation(arguments: Mapping[str, Any], path: str) -> dict[str, Any]:
    for name, known in _ROTATION.items():
        if arguments.get(name, known) != known:
            raise CheckpointError(f"{path}: {name}={str(arguments[name])[:40]!r} in its model_args is not supported.")
    rotation = {name: arguments.get(f"rope_{name}_coords") for name in ("shift", "jitter", "rescale")}
    base = _torch.number(arguments.get("rope_temperature", 100.0), 1, 1e9, f"{path}: rope_temperature")
    return {"rope_base": base, **{f"rope_{name}": value for name, value in rotation.items()}}
