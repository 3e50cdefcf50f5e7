"""Facts of timm's models that depend on their architecture's name: a configuration states overrides only.

References:
    - [timm](https://github.com/huggingface/pytorch-image-models), `vision_transformer.py` and `eva.py`, the registered
      models
"""

import re
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.checkpoint import Checkpoint
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import _torch

_GELU, _TANH = {"activation": "gelu"}, {"activation": "gelu_tanh"}
_SWIGLU = {"activation": "silu", "mlp": "swiglu"}
_DINOV3 = {"activation": "gelu", "layer_norm_epsilon": 1e-5, "position_embedding": "rope2d"}
# Arguments of this package by architecture. They are needed where tensors do not show them.
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
# Blocks with the tensors of the usual ones, which normalize after attention and MLP.
_OTHER_BLOCKS = re.compile(r"vit_base_patch16_rpn_224")


def name_of(config: Mapping[str, Any]) -> str:
    """Return the name of the architecture, without the tag of the weights."""
    return str(config.get("architecture") or "").partition(".")[0]


def facts_of(name: str) -> dict[str, Any] | None:
    """Return the arguments that an architecture's name determines, None if it is not known."""
    return next((facts for pattern, facts in _ARCHITECTURES if re.fullmatch(pattern, name)), None)


def infer(
    checkpoint: Checkpoint, config: Mapping[str, Any], arguments: Mapping[str, Any], wanted: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments that are stated, or those of the architecture, or those of all models with such tensors."""
    path, found, name = checkpoint.path, checkpoint.arguments, name_of(config)
    if _OTHER_BLOCKS.fullmatch(name):
        raise CheckpointError(f"{path}: timm's {name} normalizes after attention and MLP, which is not supported.")
    facts = {"layer_norm_epsilon": 1e-6, **(facts_of(name) or {})}
    facts.pop("num_heads", None)
    if facts.get("mlp", found["mlp"]) != found["mlp"] and found["num_layers"]:
        raise CheckpointError(f"{path}: timm's {name} has mlp={facts['mlp']!r}, the tensors {found['mlp']!r}.")
    if found["mlp"] == "swiglu":
        facts["activation"] = "silu"
    elif arguments.get("act_layer"):
        facts["activation"] = _torch.activation(arguments["act_layer"], path)
    reason = f"timm's architecture {name[:60]!r} is not known" if name else "no config.json names timm's architecture"
    noted = "arguments" in checkpoint.source.metadata  # which `recognition` takes them from
    needed = ["activation"] if "activation" not in facts and not noted else []
    if checkpoint.layout.style == "eva" and not noted and "position_embedding" not in facts:
        needed = ["position_embedding"]
    if checkpoint.layout.style == "packed" and not noted and "mlp" not in facts and "mlp" not in wanted:
        needed = ["mlp"]
    if needed == ["activation"] and (found["class_token"] or found["distillation_token"] or found["num_registers"]):
        if not name:
            checkpoint.assumed["activation"] = "timm's default"
        return {**facts, "activation": "gelu"}
    for argument in needed:
        if wanted.get(argument) is None:
            raise CheckpointError(f"{path}: {reason}, and {_ADVICE[argument]}")
        checkpoint.doubtful[argument] = reason
        facts[argument] = wanted[argument]
    if facts.get("position_embedding") == "rope2d":
        facts = {**_DINOV3, **facts, "layer_norm_epsilon": _DINOV3["layer_norm_epsilon"]}
    if "activation" not in facts:
        facts["activation"] = "gelu"
    if checkpoint.layout.style == "eva":
        facts |= _rotation(arguments, path)
    return facts


_PASS = "Put the config.json of a registered architecture beside the file, or pass "
_ADVICE = {
    "activation": "models without class token and registers have different activations. "
    f"{_PASS}activation='gelu' (most models) or 'gelu_tanh' (some SigLIP models) to keras_vit.model_from_checkpoint.",
    "position_embedding": "its tensors do not show how positions enter. "
    f"{_PASS}position_embedding='rope2d' (DINOv3) to keras_vit.model_from_checkpoint.",
    "mlp": "its tensors do not show which half of the first kernel is the gate. "
    f"{_PASS}mlp='swiglu' (the gate first, with SiLU) to keras_vit.model_from_checkpoint.",
}
# Arguments of timm's `Eva` by which its rotation is another, and their values in DINOv3.
_ROTATION = {
    "rope_type": ("dinov3",),
    "rope_rotate_half": (True,),
    "rope_grid_offset": (0.5,),
    "use_rot_pos_emb": (True,),
}


def _rotation(arguments: Mapping[str, Any], path: str) -> dict[str, Any]:
    for name, known in _ROTATION.items():
        if name in arguments and arguments[name] not in known:
            raise CheckpointError(f"{path}: {name}={str(arguments[name])[:40]!r} of its model_args is not supported.")
    base, rescale = arguments.get("rope_temperature", 100.0), arguments.get("rope_rescale_coords")
    if isinstance(base, bool) or not isinstance(base, (int, float)) or not 1 < base < 1e9:
        raise CheckpointError(f"{path}: rope_temperature must be a number over 1. Received: {str(base)[:40]!r}.")
    facts = {"rope_base": float(base), "rope_rescale": rescale, "rope_jitter": arguments.get("rope_jitter_coords")}
    return {**facts, "rope_shift": arguments.get("rope_shift_coords")}
