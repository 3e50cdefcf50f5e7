"""Names of the tensors of vit-pytorch's `ViT` and `SimpleViT`, and details of these models, by version."""

import dataclasses
from collections.abc import Mapping

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Layout
from keras_vit.checkpoints.families import _torch
from keras_vit.checkpoints.families._torch import ATTENTION
from keras_vit.checkpoints.families.family import Config
from keras_vit.checkpoints.rules import (
    DENSE,
    HEADS_IN,
    HEADS_OUT,
    SAME,
    Rule,
    Transform,
    each,
    fused,
    rule,
)

Patch = tuple[int, int, int]  # height, width and channels
Shapes = Mapping[str, tuple[int, ...]]
_TABLE = architecture.TABLE
# [N, D] <-> [1, N, D]
_AXIS = each(lambda w, heads: w[None], lambda w: w[0])


@dataclasses.dataclass(frozen=True)
class Style:
    """Names and details that a version of vit-pytorch brought, and the next ones kept."""

    blocks: str = ""  # modules around attention and MLP of a `ViT`
    patch_norm: bool = True  # layer norms surround the projection of the patches
    norm_in_head: bool = False  # the last norm is in the head, and so follows the pooling
    token_for_mean: bool = False  # models that take the mean have a class token, too, which is part of it
    leading_axis: bool = True  # tokens and position table begin with an axis of length one
    identity_output: bool = True  # a single head as wide as the tokens has no projection after it
    optional_head: bool = False


_OLD = Style("fn.", norm_in_head=True, token_for_mean=True)
# By the first version, the latest first.
STYLES = {
    "1.18": Style(leading_axis=False, optional_head=True),
    "1.16": Style(),
    "1.4": Style(token_for_mean=True),
    "1.0": _OLD,
    "0.8": dataclasses.replace(_OLD, patch_norm=False),
    "0.7": dataclasses.replace(_OLD, blocks="fn.fn.", patch_norm=False, identity_output=False),
}


def rules(layout: Layout, patch: Patch = (1, 1, 1), last_norm: str = "encoder_norm") -> list[Rule]:
    """Return the rules of a layout."""
    style, body, simple = STYLES[layout.style], layout.prefix, not layout.position
    attention, mlp = (f"{body}transformer.layers.{{i}}.{index}." for index in (0, 1))
    inner = "" if simple else style.blocks
    outer = inner.removeprefix("fn.")
    heads = f"encoderblock_{{i}}/{ATTENTION}"
    parts = [f"{heads}/{part}/kernel" for part in ("query", "key", "value")]
    out = f"{attention}{inner}to_out" + ("" if simple else ".0")
    # LayerNorm (if it is not outside), Linear, GELU, Dropout (not in SimpleViT), Linear
    first = 0 if inner else 1
    second = first + (2 if simple else 3)
    head = f"{body}linear_head" if simple else f"{body}mlp_head"
    return [
        *_token_rules(layout, style),
        *_patch_rules(f"{body}to_patch_embedding", style, patch),
        *_torch.norm(f"{attention}{outer}norm", "encoderblock_{i}/LayerNorm_0"),
        rule(f"{attention}{inner}to_qkv.weight", parts, fused(HEADS_IN, 3)),
        rule(f"{out}.weight", f"{heads}/out/kernel", HEADS_OUT),
        rule(f"{out}.bias", f"{heads}/out/bias"),
        *_torch.norm(f"{mlp}{outer}norm" if inner else f"{mlp}net.0", "encoderblock_{i}/LayerNorm_1"),
        *_torch.dense(f"{mlp}{inner}net.{first}", "encoderblock_{i}/MlpBlock_0/Dense_0"),
        *_torch.dense(f"{mlp}{inner}net.{second}", "encoderblock_{i}/MlpBlock_0/Dense_1"),
        *_torch.norm(f"{head}.0" if style.norm_in_head else f"{body}transformer.norm", last_norm),
        *_torch.norm(f"{head}.0", "fc_norm"),
        *_torch.dense(f"{head}.1" if style.norm_in_head else head, "head"),
    ]


def _token_rules(layout: Layout, style: Style) -> list[Rule]:
    token, table = f"{layout.prefix}cls_token", f"{layout.prefix}pos_embedding"
    axis = SAME if style.leading_axis else _AXIS
    result = [rule((token, table), ("cls/cls", _TABLE), axis)]
    if not style.token_for_mean:  # models without a class token store one of no elements
        empty = Transform(axis.read, lambda arrays: axis.write((arrays[0], arrays[0][:, :0])))
        result.append(rule((table, token), _TABLE, empty))
    registers = rule(f"{layout.prefix}register_tokens", "registers/registers", _AXIS)
    return [*result, rule(table, _TABLE, axis), registers]


def _patch_rules(stored: str, style: Style, patch: Patch) -> list[Rule]:
    pixels = each(lambda w, heads: w.T.reshape(*patch, -1), lambda w: DENSE.write((w.reshape(-1, w.shape[-1]),))[0])
    linear = f"{stored}.2" if style.patch_norm else f"{stored}.1"
    result = [rule(f"{linear}.weight", "embedding/kernel", pixels), rule(f"{linear}.bias", "embedding/bias")]
    if style.patch_norm:
        result += _torch.norm(f"{stored}.1", "embedding/LayerNorm_0")
        result += _torch.norm(f"{stored}.3", "embedding/LayerNorm_1")
    return result


def style_of(shapes: Shapes) -> str:
    """Return the first version that writes such names and shapes."""
    if "transformer.norm.weight" not in shapes:
        if len(shapes["to_patch_embedding.1.weight"]) == 1:
            return "1.0"
        return "0.7" if any(name.startswith("transformer.layers.0.0.fn.fn.") for name in shapes) else "0.8"
    token = shapes.get("cls_token", ())
    if len(token) != 3:
        return "1.18"
    return "1.16" if 0 in token else "1.4"


def suits(style: Style, config: Config) -> bool:
    """Return whether models of a version compute what the model computes."""
    if style.patch_norm != config["patch_norm"]:
        return False
    if config["pooling"] == "gap" and config["norm_after_pooling"] != style.norm_in_head:
        return False
    if not config["include_top"] and (not style.optional_head or config["position_embedding"] == "sincos2d"):
        return False
    if config["position_embedding"] == "sincos2d":
        return not config["class_token"] and config["output_projection"] == "no_bias"
    identity = style.identity_output and config["num_heads"] == 1 and config["head_dim"] is None
    if config["output_projection"] != ("none" if identity else "bias") or config["num_registers"]:
        return False
    token = config["pooling"] == "token" or style.token_for_mean
    return config["class_token"] == token and config["pool_prefix_tokens"] == (token and config["pooling"] == "gap")
