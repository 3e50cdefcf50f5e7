"""Activation of timm's models, which depends on their architecture's name: a configuration states overrides only.

References:
    - [timm](https://github.com/huggingface/pytorch-image-models), `vision_transformer.py`, the registered models
"""

import re
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.checkpoint import Checkpoint
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import _torch

# Architectures without class token and registers, whose tensors are alike. All others with these tensors have "gelu".
_ACTIVATIONS = (
    (r"vit_base_patch16_siglip_(gap_)?(224|256|384|512)", "gelu"),
    (r"vit_large_patch16_siglip_(gap_)?(256|384)", "gelu"),
    (r"vit_so400m_patch14_siglip_(gap_)?(224|378|384|448|896)", "gelu"),
    (r"vit_base_patch32_siglip_(gap_)?256", "gelu_tanh"),
    (r"vit_large_patch16_siglip_(gap_)?512", "gelu_tanh"),
    (r"vit_so400m_patch16_siglip_(gap_)?(256|384|512)", "gelu_tanh"),
    (r"vit_giantopt_patch16_siglip_(gap_)?(256|384)", "gelu_tanh"),
    (r"vit_(medium_patch16_gap_(240|256|384)|betwixt_patch16_gap_256|(base|giant)_patch16_gap_224)", "gelu"),
    (r"vit_huge_(patch14_gap_224|patch16_gap_448)", "gelu"),
    (r"test_vit[23]?", "gelu"),
    (r".*_clip_quickgelu_.*", "quick_gelu"),
)
# Blocks with the tensors of the usual ones, which normalize after attention and MLP.
_OTHER_BLOCKS = re.compile(r"vit_base_patch16_rpn_224")


def infer(
    checkpoint: Checkpoint,
    config: Mapping[str, Any],
    arguments: Mapping[str, Any],
    found: Mapping[str, Any],
    wanted: Mapping[str, Any],
) -> str:
    """Return the activation that is stated, or that of the architecture, or that of all models with such tensors."""
    path = checkpoint.path
    if arguments.get("act_layer"):
        return _torch.activation(arguments["act_layer"], path)
    architecture = str(config.get("architecture") or "")
    name = architecture.partition(".")[0]  # without the tag of the weights
    if _OTHER_BLOCKS.fullmatch(name):
        raise CheckpointError(f"{path}: timm's {name} normalizes after attention and MLP, which is not supported.")
    known = next((value for pattern, value in _ACTIVATIONS if re.fullmatch(pattern, name)), None)
    if known is not None:
        return known
    has_prefix = found["class_token"] or found["distillation_token"] or found["num_registers"]
    if has_prefix or "arguments" in checkpoint.source.metadata:  # which `note.apply` takes it from
        if not name:
            checkpoint.assumed["activation"] = "timm's default"
        return "gelu"
    reason = f"timm's architecture {name[:60]!r} is not known" if name else "no config.json names timm's architecture"
    if wanted.get("activation") is None:
        raise CheckpointError(
            f"{path}: {reason}, and models without class token and registers have different activations. Put the "
            "config.json of a registered architecture beside the file, or pass activation='gelu' (most models) or "
            "'gelu_tanh' (some SigLIP models) to keras_vit.model_from_checkpoint."
        )
    checkpoint.doubtful["activation"] = reason
    return str(wanted["activation"])
