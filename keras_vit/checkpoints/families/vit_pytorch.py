"""`ViT` and `SimpleViT` of vit-pytorch 1.18 and later: a `state_dict` in a `.safetensors` file.

The number of heads and the shape of a patch cannot be inferred from the tensors. Both facts must come from the caller,
from the metadata of `save_checkpoint`, or from a `config.json` with the constructor's arguments.

References:
    - [vit-pytorch](https://github.com/lucidrains/vit-pytorch), `vit.py` and `simple_vit.py`
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout, variable_shapes
from keras_vit.checkpoints.families import _torch
from keras_vit.checkpoints.families.family import ANY, Config, Family, Files, Names, Writing
from keras_vit.checkpoints.formats.tensors import CheckpointError, TensorSource
from keras_vit.checkpoints.position_grid import stated_size
from keras_vit.checkpoints.rules import FIRST_AXIS, Rule, Transform, bind_stored, each, rule
from keras_vit.models.normalization import Normalization

Patch = tuple[int, int, int]  # height, width and channels
Shapes = Mapping[str, tuple[int, ...]]
_POOLINGS = {"cls": "token", "mean": "gap"}
# vit-pytorch's arguments, and the corresponding arguments of this package.
_NAMES = {"dim": "hidden_size", "depth": "num_layers", "heads": "num_heads"}
_NAMES |= {name: name for name in ("mlp_dim", "patch_size", "channels")}
_TABLE = architecture.TABLE


def rules(layout: Layout, patch: Patch = (1, 1, 1)) -> list[Rule]:
    """Return the rules of a layout."""
    body, simple = layout.prefix, not layout.position
    # The MLP: LayerNorm, Linear, GELU, Dropout (not in SimpleViT), Linear.
    names = _torch.Names(
        norms=("0.norm", "1.net.0"),
        heads=("0.to_qkv",),
        out="0.to_out" if simple else "0.to_out.0",
        mlp=("1.net.1", "1.net.3" if simple else "1.net.4"),
    )
    return [
        *_token_rules(body),
        *_patch_rules(f"{body}to_patch_embedding", patch),
        *_torch.block_rules(names, f"{body}transformer.layers.{{i}}", "encoderblock_{i}"),
        *_torch.norm(f"{body}transformer.norm", "encoder_norm"),
        *_torch.dense(f"{body}linear_head" if simple else f"{body}mlp_head", "head"),
    ]


def _token_rules(body: str) -> list[Rule]:
    token, table = f"{body}cls_token", f"{body}pos_embedding"
    # Models without a class token store an empty tensor.
    empty = Transform(FIRST_AXIS.read, lambda arrays: FIRST_AXIS.write((arrays[0], arrays[0][:, :0])))
    return [
        rule((token, table), ("cls/cls", _TABLE), FIRST_AXIS),
        rule((table, token), _TABLE, empty),
        rule(f"{body}register_tokens", "registers/registers", FIRST_AXIS),
        rule(table, _TABLE, FIRST_AXIS),
    ]


def _patch_rules(stored: str, patch: Patch) -> list[Rule]:
    pixels = each(lambda w, heads: w.T.reshape(*patch, -1), lambda w: w.reshape(-1, w.shape[-1]).T)
    return [
        rule(f"{stored}.2.weight", "embedding/kernel", pixels),
        rule(f"{stored}.2.bias", "embedding/bias"),
        *_torch.norm(f"{stored}.1", "embedding/LayerNorm_0"),
        *_torch.norm(f"{stored}.3", "embedding/LayerNorm_1"),
    ]


def recognize(source: TensorSource, hints: Hints) -> Checkpoint | None:
    """Return the checkpoint in `source`, or None if the file contains neither a `ViT` nor a `SimpleViT`."""
    body = _torch.find_body(source, "to_patch_embedding.1.weight", hints)
    if body is None or not any(name.startswith(f"{body}transformer.layers.0.") for name in source.tensors):
        return None
    shapes = {name.removeprefix(body): tensor.shape for name, tensor in source.tensors.items()}
    if "transformer.norm.weight" not in shapes or len(shapes.get("cls_token", (0, 0))) != 2:
        raise CheckpointError(
            f"{source.path}: expected the names and shapes of vit-pytorch 1.18 or later. Received: names and "
            "shapes of an earlier version. Rename the tensors for a model of the present version, and save its "
            "state_dict again."
        )
    simple = "pos_embedding" not in shapes
    layout = Layout("vit_pytorch", position="" if simple else "pos_embedding", prefix=body)
    stated = _stated(source)
    # Facts from the metadata, `config.json` and the caller, in this order of precedence.
    known = {**hints.wanted, **stated, **source.metadata.get("arguments", {})}
    linear = shapes.get("to_patch_embedding.2.weight", ())
    patch, patch_reason = _patch(linear[-1] if len(linear) == 2 else 0, known, source.path)
    ignored = {name for name in source.tensors if not name.startswith(body)}
    ignored |= {f"{body}cls_token"} if 0 in shapes.get("cls_token", ()) else set()  # an empty tensor
    bindings, unexpected = bind_stored(rules(layout, patch), [n for n in source.tensors if n not in ignored])
    checkpoint = Checkpoint(source, layout, bindings, shapes={}, unexpected=unexpected, ignored=sorted(ignored))
    heads = _heads(shapes, known, source.path)
    checkpoint.shapes = variable_shapes(source, bindings, heads)
    found = architecture.infer_vit(checkpoint.shapes, heads, source.path)
    always: dict[str, Any] = {"qkv_bias": False, "position_embedding": not simple}
    single = found.get("output_projection") == "none"  # a single head as wide as the tokens
    always["output_projection"] = "no_bias" if simple else "none" if single else "bias"
    always["include_top"] = True if simple else None
    architecture.check_type(source, found, always, {**stated, "pooling": None})
    checkpoint.arguments = {
        **found,
        "pooling": "gap" if 0 in shapes.get("cls_token", (0,)) else "token",
        "activation": "gelu",
        "layer_norm_epsilon": 1e-5,
    }
    if simple:
        checkpoint.arguments["position_embedding"] = "sincos2d"
    if "image_size" in stated:
        checkpoint.arguments["image_size"] = known["image_size"]
    if patch_reason:
        checkpoint.assumed["patch_size"] = patch_reason
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


def _heads(shapes: Shapes, known: dict[str, Any], path: str) -> int:
    """Return the number of heads."""
    qkv = shapes.get("transformer.layers.0.0.to_qkv.weight", ())
    inner = qkv[0] // 3 if len(qkv) == 2 else 0
    heads, head_dim = known.get("num_heads"), known.get("head_dim")
    if not any(name.startswith("transformer.layers.0.0.to_out.") for name in shapes):
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


def _limits(config: Config) -> Iterator[str]:
    if not _suits(config):
        yield "it does not combine these heads, patch norms, tokens, pooling and final norm"
    if config["position_embedding"] == "learned" and config["image_size"] is None:
        yield "its configuration needs an image_size"


def _suits(config: Config) -> bool:
    mean, simple = config["pooling"] == "gap", config["position_embedding"] == "sincos2d"
    if not config["patch_norm"] or (mean and config["norm_after_pooling"]):
        return False
    if simple:
        return config["include_top"] and not config["class_token"] and config["output_projection"] == "no_bias"
    identity = config["num_heads"] == 1 and config["head_dim"] is None
    if config["output_projection"] != ("none" if identity else "bias") or config["num_registers"]:
        return False
    return config["class_token"] != mean


def _layout(config: Config) -> Layout:
    return Layout("vit_pytorch", position="pos_embedding" if config["position_embedding"] == "learned" else "")


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
            "norm_after_pooling": ANY,
        },
        limits=_limits,
        layout=_layout,
        tensors="safetensors",
        documents=_documents,
    ),
)
