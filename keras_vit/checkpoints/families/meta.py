"""Meta's own `.safetensors` files of DINOv2 and DINOv3. Only tokens, biases and MLPs are named differently from timm.

References:
    - [dinov2](https://github.com/facebookresearch/dinov2) and [dinov3](https://github.com/facebookresearch/dinov3),
      `models/vision_transformer.py`
"""

import dataclasses
import re
from typing import Any

import numpy as np

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout
from keras_vit.checkpoints.families import _timm, _torch
from keras_vit.checkpoints.families.family import Family
from keras_vit.checkpoints.formats.tensors import CheckpointError, TensorSource
from keras_vit.checkpoints.rules import HEADS_BIAS, Arrays, Rule, Transform, rule
from keras_vit.models.normalization import IMAGENET

_PERIODS = "rope_embed.periods"
_BASE = 100.0  # of the periods of all published models
_NAMES = dataclasses.replace(
    _timm.NAMES,
    tokens={
        "cls_token": "cls/cls",
        "storage_tokens": "registers/registers",
        "register_tokens": "registers/registers",
        "pos_embed": _timm.NAMES.tokens["pos_embed"],
    },
    gated=("mlp.w12", "mlp.w3"),
)
# Names that distinguish these files from timm's files, and tensors that only pre-training uses.
_MARKS = re.compile(r"(mask_token|storage_tokens|register_tokens|rope_embed\.periods|.*\.mlp\.w12\.weight)")
_UNUSED = re.compile(r"(mask_token|rope_embed\.periods|local_cls_norm\..*)")


def _read_masked(arrays: Arrays, heads: int) -> Arrays:
    """Return the biases of query and value. The mask is zero for the key, and all zeros for models without biases."""
    bias, mask = arrays
    if bias.dtype.kind != "V":
        bias = np.where(mask == 0, np.zeros_like(bias), bias * mask)
        if np.split(bias, 3)[1].any():
            raise CheckpointError("The keys' biases must be masked (`qkv.bias_mask`), as in all known DINOv3 models.")
    query, _, value = np.split(bias, 3)
    return HEADS_BIAS.read((query, value), heads)


def _rules(layout: Layout) -> list[Rule]:
    """Return the rules of a layout."""
    body, block = layout.prefix, f"{layout.prefix}{_NAMES.block}"
    attention = f"encoderblock_{{i}}/{_torch.ATTENTION}"
    masked = Transform(_read_masked, lambda arrays: arrays)
    three = dataclasses.replace(_NAMES, gated=("mlp.w1", "mlp.w2", "mlp.w3"))
    return [
        rule(
            (f"{block}.attn.qkv.bias", f"{block}.attn.qkv.bias_mask"),
            (f"{attention}/query/bias", f"{attention}/value/bias"),
            masked,
        ),
        *_torch.gated_rules(three, block, "encoderblock_{i}"),
        *_torch.model_rules(_NAMES, body),
        *_torch.dense(f"{body}head", "head"),
    ]


def _recognize(source: TensorSource, hints: Hints) -> Checkpoint | None:
    """Return the checkpoint in `source`, or None if the file does not have Meta's names."""
    anchor = "patch_embed.proj.weight"
    body = _torch.find_body(source, anchor, hints)
    if body is None:
        return None
    names = [name.removeprefix(body) for name in source.tensors if name.startswith(body)]
    if not any(map(_MARKS.fullmatch, names)) or any(name.startswith("decoder_") for name in names):
        return None
    layout = Layout("meta", prefix=body)
    ignored = {f"{body}{name}" for name in names if _UNUSED.fullmatch(name)}
    always: dict[str, Any] = {"class_token": True, "layer_scale": True}
    if rotated := _PERIODS in names:
        # All published models have biases, except the largest model, whose MLPs are gated.
        biases = any(".qkv.bias" in name or ".mlp.fc1." in name for name in names)
        always |= {"num_registers": 4, "position_embedding": None, "qkv_bias": biases and (True, False, True)}
    checkpoint = _torch.bind(source, layout, _rules(layout), hints, f"{body}{anchor}", ignored=ignored)
    found = checkpoint.arguments
    always["num_registers"] = always.get("num_registers") and (found["num_registers"] or 4)
    architecture.check_type(source, found, always)
    gated = found["mlp"] == "swiglu"
    found |= {"pooling": "token", "activation": "silu" if gated else "gelu", "layer_norm_epsilon": 1e-6}
    checkpoint.resize_method = "antialiased" if found["num_registers"] else "dinov2"
    if rotated:
        _check_periods(source, f"{body}{_PERIODS}")
        rotation = {"position_embedding": "rope2d", "rope_base": _BASE, "rope_rescale": 2.0}
        found |= {**rotation, "layer_norm_epsilon": 1e-5, "image_size": 224}
    if not found["include_top"]:
        checkpoint.allow_any_head()
    return checkpoint


def _check_periods(source: TensorSource, name: str) -> None:
    """Refuse periods that differ from the periods of `RotaryPositions` by more than rounding to bfloat16."""
    stored = np.asarray(source.read(name), np.float64).reshape(-1)
    expected = _BASE ** (np.arange(stored.size) / max(stored.size, 1))  # 2 j / (K / 2), of K / 4 numbers
    if not np.allclose(stored, expected, rtol=2**-7):
        raise CheckpointError(
            f"{source.path}: {name} must contain the periods of base {_BASE:.0f}, {expected[:3].round(3)} ... "
            f"Received: {stored[:3].round(3)} ... Other rotations are not supported."
        )


FAMILY = Family("meta", _recognize, _rules, resize_method="dinov2", input_normalization=IMAGENET)
