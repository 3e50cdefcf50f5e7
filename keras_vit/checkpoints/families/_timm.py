"""Names of timm's tensors, also used by the authors of masked autoencoders."""

import dataclasses

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Layout
from keras_vit.checkpoints.families import _torch
from keras_vit.checkpoints.families._torch import ATTENTION
from keras_vit.checkpoints.rules import CONV, HEADS_BIAS, WITHOUT_SLOT, Rule, register_slots, rule

_TABLE = architecture.TABLE
STEM = "patch_embed.backbone"
_TOKENS = {"cls_token": "cls/cls", "dist_token": "dist/dist", "reg_token": "registers/registers", "pos_embed": _TABLE}
NAMES = _torch.Names(
    embedding="patch_embed.proj",
    tokens=_TOKENS,
    block="blocks.{i}",
    norms=("norm1", "norm2"),
    heads=("attn.qkv",),
    out="attn.proj",
    mlp=("mlp.fc1", "mlp.fc2"),
    encoder_norm="norm",
    scales=("ls1.gamma", "ls2.gamma"),
)


# "eva" contains the names of `Eva`, timm's class of DINOv3. "packed" contains the names of a `VisionTransformer` that
# stores both halves of a gated MLP in one kernel.
_STYLES = {
    "eva": dataclasses.replace(NAMES, scales=("gamma_1", "gamma_2"), gated=("mlp.fc1_g", "mlp.fc1_x", "mlp.fc2")),
    "packed": dataclasses.replace(NAMES, gated=NAMES.mlp),
}


def rules(layout: Layout) -> list[Rule]:
    """Return the rules of a layout."""
    body, names = layout.prefix, _STYLES.get(layout.style, NAMES)
    result = [*_slot_rules(layout.slots, body), *_torch.model_rules(names, body)]
    result += _torch.norm(f"{body}fc_norm", "fc_norm")
    for stored, variable in (("head", "head"), ("head_dist", "head_dist"), ("pre_logits.fc", "pre_logits")):
        result += _torch.dense(f"{body}{stored}", variable)
    if layout.style == "eva":  # the key has no bias
        attention = f"encoderblock_{{i}}/{ATTENTION}"
        for stored, part in (("q_bias", "query"), ("v_bias", "value")):
            result.append(rule(f"{body}{NAMES.block}.attn.{stored}", f"{attention}/{part}/bias", HEADS_BIAS))
    return result + pooling_rules(body) + _resnet_rules(layout)


def _slot_rules(slots: str, body: str) -> list[Rule]:
    """Return the rules of position tables without entries for prefix tokens, or with entries for registers."""
    cls, dist, registers, table = (f"{body}{name}" for name in _TOKENS)
    if slots == "none":
        return [
            rule((cls, dist, table), ("cls/cls", "dist/dist", _TABLE), WITHOUT_SLOT),
            rule((cls, table), ("cls/cls", _TABLE), WITHOUT_SLOT),
        ]
    if slots == "all":
        return [
            rule((cls, registers, table), ("cls/cls", "registers/registers", _TABLE), register_slots(1)),
            rule((registers, table), ("registers/registers", _TABLE), register_slots(0)),
        ]
    return []


def pooling_rules(body: str) -> list[Rule]:
    """Return the rules of the attention pooling."""
    pool, attention = f"{body}attn_pool", f"MAPHead_0/{ATTENTION}"
    return [
        rule(f"{pool}.latent", "MAPHead_0/probe"),
        *_torch.heads_in(f"{pool}.q", f"{attention}/query"),
        *_torch.fused_heads(f"{pool}.kv", [f"{attention}/key", f"{attention}/value"]),
        *_torch.heads_out(f"{pool}.proj", f"{attention}/out"),
        *_torch.norm(f"{pool}.norm", "MAPHead_0/LayerNorm_0"),
        *_torch.dense(f"{pool}.mlp.fc1", "MAPHead_0/MlpBlock_0/Dense_0"),
        *_torch.dense(f"{pool}.mlp.fc2", "MAPHead_0/MlpBlock_0/Dense_1"),
    ]


def _resnet_rules(layout: Layout) -> list[Rule]:
    # A hybrid with stages has its root under `stem`. A hybrid without stages consists of only the root.
    stem = f"{layout.prefix}{STEM}.stem" if layout.style == "stages" else f"{layout.prefix}{STEM}"
    stored, unit = f"{layout.prefix}{STEM}.stages.{{b}}.blocks.{{u}}", "block{b+1}/unit{u+1}"
    result = [rule(f"{stem}.conv.weight", "conv_root/kernel", CONV), *_torch.norm(f"{stem}.norm", "gn_root")]
    for index in (1, 2, 3):
        result.append(rule(f"{stored}.conv{index}.weight", f"{unit}/conv{index}/kernel", CONV))
        result += _torch.norm(f"{stored}.norm{index}", f"{unit}/gn{index}")
    result.append(rule(f"{stored}.downsample.conv.weight", f"{unit}/conv_proj/kernel", CONV))
    return result + _torch.norm(f"{stored}.downsample.norm", f"{unit}/gn_proj")
