"""vit-pytorch's `ViT` and `SimpleViT`: a `state_dict` in a `.safetensors` file.

The number of heads and the shape of a patch cannot be inferred from the tensors. Both facts must come from the caller,
from the metadata of `save_checkpoint`, or from a `config.json` with the constructor's arguments.

References:
    - [vit-pytorch](https://github.com/lucidrains/vit-pytorch), `vit.py` and `simple_vit.py`
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout, variable_shapes
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import _torch
from keras_vit.checkpoints.families.family import ANY, Config, Family, Files, Names, Writing
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.position_grid import stated_size
from keras_vit.checkpoints.rules import FIRST_AXIS, SAME, Rule, Transform, bind_stored, each, rule
from keras_vit.models.normalization import Normalization

Patch = tuple[int, int, int]  # height, width and channels
Shapes = Mapping[str, tuple[int, ...]]
_POOLINGS = {"cls": "token", "mean": "gap"}
# vit-pytorch's arguments, and the corresponding arguments of this package.
_NAMES = {"dim": "hidden_size", "depth": "num_layers", "heads": "num_heads"}
_NAMES |= {name: name for name in ("mlp_dim", "patch_size", "channels")}
_TABLE = architecture.TABLE


@dataclasses.dataclass(frozen=True)
class Style:
    """Names and details of the models in a range of vit-pytorch's versions."""

    blocks: str = ""  # modules around attention and MLP of a `ViT`
    patch_norm: bool = True  # layer norms before and after the projection of the patches
    norm_in_head: bool = False  # the last norm is in the head, after the pooling
    token_for_mean: bool = False  # models that pool by the mean also have a class token, which the mean includes
    leading_axis: bool = True  # tokens and position table begin with an axis of length one
    identity_output: bool = True  # no output projection if there is a single head as wide as the tokens
    optional_head: bool = False  # models without a head exist


_OLD = Style("fn.", norm_in_head=True, token_for_mean=True)
# Styles by their first version, from the latest to the earliest.
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
    inner = "" if simple else style.blocks
    outer = inner.removeprefix("fn.")
    # The MLP: LayerNorm (unless outside the MLP), Linear, GELU, Dropout (not in SimpleViT), Linear.
    first = 0 if inner else 1
    names = _torch.Names(
        norms=(f"0.{outer}norm", f"1.{outer}norm" if inner else "1.net.0"),
        heads=(f"0.{inner}to_qkv",),
        out=f"0.{inner}to_out" if simple else f"0.{inner}to_out.0",
        mlp=tuple(f"1.{inner}net.{index}" for index in (first, first + (2 if simple else 3))),
    )
    head = f"{body}linear_head" if simple else f"{body}mlp_head"
    return [
        *_token_rules(layout, style),
        *_patch_rules(f"{body}to_patch_embedding", style, patch),
        *_torch.block_rules(names, f"{body}transformer.layers.{{i}}", "encoderblock_{i}"),
        *_torch.norm(f"{head}.0" if style.norm_in_head else f"{body}transformer.norm", last_norm),
        *_torch.norm(f"{head}.0", "fc_norm"),
        *_torch.dense(f"{head}.1" if style.norm_in_head else head, "head"),
    ]


def _token_rules(layout: Layout, style: Style) -> list[Rule]:
    token, table = f"{layout.prefix}cls_token", f"{layout.prefix}pos_embedding"
    axis = SAME if style.leading_axis else FIRST_AXIS
    result = [rule((token, table), ("cls/cls", _TABLE), axis)]
    if not style.token_for_mean:  # models without a class token store an empty tensor
        empty = Transform(axis.read, lambda arrays: axis.write((arrays[0], arrays[0][:, :0])))
        result.append(rule((table, token), _TABLE, empty))
    registers = rule(f"{layout.prefix}register_tokens", "registers/registers", FIRST_AXIS)
    return [*result, rule(table, _TABLE, axis), registers]


def _patch_rules(stored: str, style: Style, patch: Patch) -> list[Rule]:
    pixels = each(lambda w, heads: w.T.reshape(*patch, -1), lambda w: w.reshape(-1, w.shape[-1]).T)
    linear = f"{stored}.2" if style.patch_norm else f"{stored}.1"
    result = [rule(f"{linear}.weight", "embedding/kernel", pixels), rule(f"{linear}.bias", "embedding/bias")]
    if style.patch_norm:
        result += _torch.norm(f"{stored}.1", "embedding/LayerNorm_0")
        result += _torch.norm(f"{stored}.3", "embedding/LayerNorm_1")
    return result


def _style_of(shapes: Shapes) -> str:
    """Return the first version that writes these names and shapes."""
    if "transformer.norm.weight" not in shapes:
        if len(shapes["to_patch_embedding.1.weight"]) == 1:
            return "1.0"
        return "0.7" if any(name.startswith("transformer.layers.0.0.fn.fn.") for name in shapes) else "0.8"
    token = shapes.get("cls_token", ())
    if len(token) != 3:
        return "1.18"
    return "1.16" if 0 in token else "1.4"


def recognize(source: TensorSource, hints: Hints) -> Checkpoint | None:
    """Return the checkpoint in `source`, or None if the file contains neither a `ViT` nor a `SimpleViT`."""
    body = _torch.find_body(source, "to_patch_embedding.1.weight", hints)
    if body is None or not any(name.startswith(f"{body}transformer.layers.0.") for name in source.tensors):
        return None
    shapes = {name.removeprefix(body): tensor.shape for name, tensor in source.tensors.items()}
    layout = Layout("vit_pytorch", _style_of(shapes), "pos_embedding" if "pos_embedding" in shapes else "", prefix=body)
    style, stated = STYLES[layout.style], _stated(source)
    # Facts from the metadata, `config.json` and the caller, in this order of precedence.
    known = {**hints.wanted, **stated, **source.metadata.get("arguments", {})}
    pooling = _pooling(shapes, known)
    last_norm = "fc_norm" if style.norm_in_head and pooling == "gap" else "encoder_norm"
    linear = shapes.get(f"to_patch_embedding.{2 if style.patch_norm else 1}.weight", ())
    patch, patch_reason = _patch(linear[-1] if len(linear) == 2 else 0, known, source.path)
    ignored = {name for name in source.tensors if not name.startswith(body)}
    ignored |= {f"{body}cls_token"} if 0 in shapes.get("cls_token", ()) else set()  # an empty tensor
    bindings, unexpected = bind_stored(rules(layout, patch, last_norm), [n for n in source.tensors if n not in ignored])
    checkpoint = Checkpoint(source, layout, bindings, shapes={}, unexpected=unexpected, ignored=sorted(ignored))
    heads = _heads(shapes, style, known, source.path)
    checkpoint.shapes = variable_shapes(source, bindings, heads)
    found = architecture.infer_vit(checkpoint.shapes, heads, source.path)
    simple, single = not layout.position, found.get("output_projection") == "none" and style.identity_output
    always: dict[str, Any] = {"qkv_bias": False, "position_embedding": not simple}
    always["output_projection"] = "no_bias" if simple else "none" if single else "bias"
    always["include_top"] = True if simple or not style.optional_head else None
    architecture.check_type(source, found, always, {**stated, "pooling": None})
    checkpoint.arguments = {
        **found,
        "pooling": pooling or "token",
        "pool_prefix_tokens": pooling == "gap" and "cls/cls" in checkpoint.shapes,
        "activation": "gelu",
        "layer_norm_epsilon": 1e-5,
    }
    if not layout.position:
        checkpoint.arguments["position_embedding"] = "sincos2d"
    if "image_size" in stated:
        checkpoint.arguments["image_size"] = known["image_size"]
    if patch_reason:
        checkpoint.assumed["patch_size"] = patch_reason
    if pooling is None:
        checkpoint.doubtful["pooling"] = "the file does not specify it, and vit-pytorch's default is the class token"
    checkpoint.class_names = _torch.label_names(source, checkpoint.arguments["classes"])
    return checkpoint


def _stated(source: TensorSource) -> dict[str, Any]:
    """Return the arguments in `config.json`, under the names of this package."""
    config = source.config or {}
    name = config.get("class", "ViT")
    if name not in ("ViT", "SimpleViT"):
        raise CheckpointError(f"{source.path}: config.json has class={str(name)[:40]!r}. Known: ViT and SimpleViT.")
    arguments = config.get("arguments", config)
    if not isinstance(arguments, dict):
        return {}
    names = {**_NAMES, "dim_head": "head_dim", "num_classes": "classes", "num_register_tokens": "num_registers"}
    stated = {str(names.get(name, name)): value for name, value in arguments.items() if value is not None}
    if "pool" in stated:
        stated["pooling"] = _POOLINGS.get(stated["pool"], "token")
    return stated


def _pooling(shapes: Shapes, known: dict[str, Any]) -> str | None:
    """Return the pooling, or None if it cannot be determined."""
    if 0 in shapes.get("cls_token", (0,)):
        return "gap"
    if len(shapes["cls_token"]) == 2 or known.get("pooling", "gap") != "gap":
        return "token"
    return known.get("pooling")


def _heads(shapes: Shapes, style: Style, known: dict[str, Any], path: str) -> int:
    """Return the number of heads."""
    attention = f"transformer.layers.0.0.{style.blocks if 'pos_embedding' in shapes else ''}"
    qkv = shapes.get(f"{attention}to_qkv.weight", ())
    inner = qkv[0] // 3 if len(qkv) == 2 else 0
    heads, head_dim = known.get("num_heads"), known.get("head_dim")
    if not any(name.startswith(f"{attention}to_out.") for name in shapes):
        if heads not in (None, 1):
            raise CheckpointError(f"{path} is incomplete: a model with {heads} heads has a projection `to_out`.")
        return 1  # only a model with a single head lacks an output projection
    if heads is None and type(head_dim) is int:
        heads = inner // max(head_dim, 1)
    if type(heads) is not int or heads < 1 or inner % heads:
        raise CheckpointError(
            f"{path}: the file does not specify the number of heads, which must divide their total width {inner}. "
            f"Pass num_heads=... (vit-pytorch's `heads`; its heads are 64 wide by default). Received: {heads!r}."
        )
    return heads


def _patch(pixels: int, known: dict[str, Any], path: str) -> tuple[Patch, str]:
    """Return height, width and channels of a patch with `pixels` values, and the reason for a guess."""
    size, channels = stated_size(known.get("patch_size")), known.get("channels")
    if size and pixels and pixels % math.prod(size) == 0 and channels in (None, pixels // math.prod(size)):
        return (*size, pixels // math.prod(size)), ""
    counts: tuple[Any, ...] = (channels, 3, 1)
    for count in counts:
        edge = math.isqrt(pixels // count) if type(count) is int and count > 0 else 0
        if edge and edge * edge * count == pixels:
            reason = f"its {pixels} values per patch fit a square of {count} channels"
            return (edge, edge, count), "" if count == channels else reason
    raise CheckpointError(f"{path}: a patch of {pixels} values has an unknown shape. Pass patch_size=(height, width).")


def _documents(config: Config, layout: Layout, class_names: Names, normalization: Normalization) -> Files:
    """Return `config.json` with the constructor's arguments."""
    simple = not layout.position
    arguments = {} if config["image_size"] is None else {"image_size": config["image_size"]}
    arguments |= {
        **{name: config[argument] for name, argument in _NAMES.items()},
        "num_classes": config["classes"] if config["include_top"] else 0,
        "dim_head": config["head_dim"] or config["hidden_size"] // config["num_heads"],
    }
    if config["num_registers"]:
        arguments["num_register_tokens"] = config["num_registers"]
    if not simple:
        arguments["pool"] = {"token": "cls", "gap": "mean"}[config["pooling"]]
        arguments |= {"dropout": config["dropout_rate"], "emb_dropout": config["dropout_rate"]}
    document: dict[str, Any] = {"class": "SimpleViT" if simple else "ViT", "arguments": arguments}
    if class_names is not None:
        document["label_names"] = list(class_names)
    return {"config.json": document}


def _suits(style: Style, config: Config) -> bool:
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


def _suited(config: Config) -> list[str]:
    """Return the versions that can build a model with the same outputs."""
    return [name for name, style in STYLES.items() if _suits(style, config)]


def _limits(config: Config) -> Iterator[str]:
    if not _suited(config):
        yield "none of its versions combines these heads, patch norms, tokens, pooling and final norm"
    if config["position_embedding"] == "learned" and config["image_size"] is None:
        yield "its configuration needs an image_size"


def _fit(layout: Layout, config: Config) -> Layout:
    suited = _suited(config)
    if layout.style not in suited:
        raise CheckpointError(f"vit-pytorch {layout.style} cannot build this model. Use one of naming={suited}.")
    return dataclasses.replace(layout, position="pos_embedding" if config["position_embedding"] == "learned" else "")


FAMILY = Family(
    "vit_pytorch",
    recognize,
    rules,
    writing=Writing(
        values={
            "activation": ("gelu",),
            "layer_norm_epsilon": (1e-5,),
            "qkv_bias": (False,),
            "pooling": ("token", "gap"),
            "position_embedding": ("learned", "sincos2d"),
            **dict.fromkeys(("num_registers", "patch_norm", "head_dim", "output_projection"), ANY),
            **dict.fromkeys(("norm_after_pooling", "pool_prefix_tokens"), ANY),
        },
        limits=_limits,
        layout=lambda config: Layout("vit_pytorch", _suited(config)[0]),
        fit=_fit,
        styles={name: functools.partial(dataclasses.replace, style=name) for name in STYLES},
        tensors="safetensors",
        documents=_documents,
    ),
)
