"""Names of timm's tensors, which the authors of masked autoencoders have, too."""

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Layout
from keras_vit.checkpoints.families import _torch
from keras_vit.checkpoints.families._torch import ATTENTION
from keras_vit.checkpoints.rules import CONV, HEADS_BIAS, HEADS_IN, WITHOUT_SLOT, Rule, fused, register_slots, rule

_TABLE = architecture.TABLE
STEM = "patch_embed.backbone"


def rules(layout: Layout) -> list[Rule]:
    """Return the rules of a layout."""
    body = layout.prefix
    result = _token_rules(layout.slots, body)
    result += _torch.conv(f"{body}patch_embed.proj", "embedding")
    result += block_rules(f"{body}blocks.{{i}}", "encoderblock_{i}")
    for stored, variable in (("norm", "encoder_norm"), ("fc_norm", "fc_norm")):
        result += _torch.norm(f"{body}{stored}", variable)
    for stored, variable in (("head", "head"), ("head_dist", "head_dist"), ("pre_logits.fc", "pre_logits")):
        result += _torch.dense(f"{body}{stored}", variable)
    return result + _pooling_rules(body) + _resnet_rules(layout)


def block_rules(stored: str, block: str) -> list[Rule]:
    """Return the rules of the blocks."""
    attention = f"{block}/{ATTENTION}"
    parts = [f"{attention}/{part}" for part in ("query", "key", "value")]
    result = [
        rule(f"{stored}.attn.qkv.weight", [f"{part}/kernel" for part in parts], fused(HEADS_IN, 3)),
        rule(f"{stored}.attn.qkv.bias", [f"{part}/bias" for part in parts], fused(HEADS_BIAS, 3)),
        *_torch.heads_out(f"{stored}.attn.proj", f"{attention}/out"),
    ]
    for index in (0, 1):
        result += _torch.norm(f"{stored}.norm{index + 1}", f"{block}/LayerNorm_{index}")
        result += _torch.dense(f"{stored}.mlp.fc{index + 1}", f"{block}/MlpBlock_0/Dense_{index}")
        result.append(rule(f"{stored}.ls{index + 1}.gamma", f"{block}/LayerScale_{index}/gamma"))
    return result


def _token_rules(slots: str, body: str) -> list[Rule]:
    tokens = {"cls_token": "cls/cls", "dist_token": "dist/dist", "reg_token": "registers/registers"}
    table, cls, dist, registers = (f"{body}{name}" for name in ("pos_embed", *tokens))
    result = []
    if slots == "none":
        result.append(rule((cls, dist, table), ("cls/cls", "dist/dist", _TABLE), WITHOUT_SLOT))
        result.append(rule((cls, table), ("cls/cls", _TABLE), WITHOUT_SLOT))
    if slots == "all":
        result.append(rule((cls, registers, table), ("cls/cls", "registers/registers", _TABLE), register_slots(1)))
        result.append(rule((registers, table), ("registers/registers", _TABLE), register_slots(0)))
    result += [rule(f"{body}{stored}", variable) for stored, variable in tokens.items()]
    return [*result, rule(table, _TABLE)]


def _pooling_rules(body: str) -> list[Rule]:
    pool, attention = f"{body}attn_pool", f"MAPHead_0/{ATTENTION}"
    pair = [f"{attention}/key", f"{attention}/value"]
    return [
        rule(f"{pool}.latent", "MAPHead_0/probe"),
        *_torch.heads_in(f"{pool}.q", f"{attention}/query"),
        rule(f"{pool}.kv.weight", [f"{part}/kernel" for part in pair], fused(HEADS_IN, 2)),
        rule(f"{pool}.kv.bias", [f"{part}/bias" for part in pair], fused(HEADS_BIAS, 2)),
        *_torch.heads_out(f"{pool}.proj", f"{attention}/out"),
        *_torch.norm(f"{pool}.norm", "MAPHead_0/LayerNorm_0"),
        *_torch.dense(f"{pool}.mlp.fc1", "MAPHead_0/MlpBlock_0/Dense_0"),
        *_torch.dense(f"{pool}.mlp.fc2", "MAPHead_0/MlpBlock_0/Dense_1"),
    ]


def _resnet_rules(layout: Layout) -> list[Rule]:
    # A hybrid of the root alone has it directly, one with stages under `stem`.
    stem = f"{layout.prefix}{STEM}.stem" if layout.style == "stages" else f"{layout.prefix}{STEM}"
    stored, unit = f"{layout.prefix}{STEM}.stages.{{b}}.blocks.{{u}}", "block{b+1}/unit{u+1}"
    result = [rule(f"{stem}.conv.weight", "conv_root/kernel", CONV), *_torch.norm(f"{stem}.norm", "gn_root")]
    for index in (1, 2, 3):
        result.append(rule(f"{stored}.conv{index}.weight", f"{unit}/conv{index}/kernel", CONV))
        result += _torch.norm(f"{stored}.norm{index}", f"{unit}/gn{index}")
    result.append(rule(f"{stored}.downsample.conv.weight", f"{unit}/conv_proj/kernel", CONV))
    return result + _torch.norm(f"{stored}.downsample.norm", f"{unit}/gn_proj")
