"""vit-pytorch's `ViT` and `SimpleViT`: the `state_dict` as a `.safetensors` file.

Such a file shows neither the number of heads nor the shape of a patch: the caller, a note of `save_checkpoint` or a
`config.json` with the constructor's arguments says them.

References:
    - [vit-pytorch](https://github.com/lucidrains/vit-pytorch), `vit.py` and `simple_vit.py`
"""

import dataclasses
import functools
import math
from typing import Any

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout, variable_shapes
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import _torch
from keras_vit.checkpoints.families._vit_pytorch import STYLES, Patch, Shapes, Style, rules, style_of, suits
from keras_vit.checkpoints.families.family import ANY, Config, Family, Files, Names, Writing
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.position_grid import stated_size
from keras_vit.checkpoints.rules import bind_stored
from keras_vit.models.normalization import Normalization

_PREFIXES = ("", "module.", "model.", "_orig_mod.", "vit.", "encoder.")
_POOLINGS = {"cls": "token", "mean": "gap"}
_NAMES = {"heads": "num_heads", "dim_head": "head_dim"}  # arguments there and here


def recognize(source: TensorSource, hints: Hints) -> Checkpoint | None:
    """Return what `source` holds, or None if it is neither a `ViT` nor a `SimpleViT`."""
    body = next((p for p in _PREFIXES if f"{p}to_patch_embedding.1.weight" in source.tensors), None)
    if body is None or not any(name.startswith(f"{body}transformer.layers.0.") for name in source.tensors):
        return None
    shapes = {name.removeprefix(body): tensor.shape for name, tensor in source.tensors.items()}
    layout = Layout("vit_pytorch", style_of(shapes), "pos_embedding" if "pos_embedding" in shapes else "", prefix=body)
    style = STYLES[layout.style]
    known = _known(source, hints)
    pooling = _pooling(shapes, known)
    last_norm = "fc_norm" if style.norm_in_head and pooling == "gap" else "encoder_norm"
    linear = shapes.get(f"to_patch_embedding.{2 if style.patch_norm else 1}.weight", ())
    patch, patch_reason = _patch(linear[-1] if len(linear) == 2 else 0, known, source.path)
    ignored = [f"{body}cls_token"] if 0 in shapes.get("cls_token", ()) else []  # stored where there is none
    names = [name for name in source.tensors if name not in ignored]
    bindings, unexpected = bind_stored(rules(layout, patch, last_norm), names)
    checkpoint = Checkpoint(source, layout, bindings, shapes={}, unexpected=unexpected, ignored=ignored)
    heads = _heads(shapes, style, known, source.path)
    checkpoint.shapes = variable_shapes(source, bindings, heads)
    checkpoint.arguments = {
        **architecture.infer_vit(checkpoint.shapes, heads, source.path),
        "pooling": pooling or "token",
        "pool_prefix_tokens": pooling == "gap" and "cls/cls" in checkpoint.shapes,
        "activation": "gelu",
        "layer_norm_epsilon": 1e-5,
    }
    if not layout.position:
        checkpoint.arguments["position_embedding"] = "sincos2d"
    if "image_size" in _stated(source):
        checkpoint.arguments["image_size"] = known["image_size"]
    if patch_reason:
        checkpoint.assumed["patch_size"] = patch_reason
    if pooling is None:
        checkpoint.doubtful["pooling"] = "the file does not say it, and vit-pytorch's default is the class token"
    checkpoint.class_names = _torch.label_names(source, checkpoint.arguments["classes"])
    return checkpoint


def _stated(source: TensorSource) -> dict[str, Any]:
    """Return what `config.json` says, under the names of this package."""
    config = source.config or {}
    if config.get("class", "ViT") not in ("ViT", "SimpleViT"):
        raise CheckpointError(
            f"{source.path}: config.json has class={str(config['class'])[:40]!r}. Known: ViT and SimpleViT."
        )
    arguments = config.get("arguments", config)
    if not isinstance(arguments, dict):
        return {}
    stated = {str(_NAMES.get(name, name)): value for name, value in arguments.items() if value is not None}
    if "pool" in stated:
        stated["pooling"] = _POOLINGS.get(stated["pool"], "token")
    return stated


def _known(source: TensorSource, hints: Hints) -> dict[str, Any]:
    """Return the arguments that note, `config.json` and caller state, in this order of precedence."""
    noted = source.metadata.get("arguments")
    return {**hints.wanted, **_stated(source), **(noted if isinstance(noted, dict) else {})}


def _pooling(shapes: Shapes, known: dict[str, Any]) -> str | None:
    """Return the pooling, None if it could be any."""
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
    if not any(name.startswith(f"{attention}to_out.") for name in shapes):
        return 1  # the only case without a projection
    heads, head_dim = known.get("num_heads"), known.get("head_dim")
    if heads is None and type(head_dim) is int:
        heads = inner // max(head_dim, 1)
    if type(heads) is not int or heads < 1 or inner % heads:
        raise CheckpointError(
            f"{path}: the number of heads is not in the file, and must divide {inner}, the width of all heads. "
            f"Pass num_heads=... (vit-pytorch's `heads`; its heads are 64 wide by default). Received: {heads!r}."
        )
    return heads


def _patch(pixels: int, known: dict[str, Any], path: str) -> tuple[Patch, str]:
    """Return height, width and channels of a patch of as many values, and the reason if it is a guess."""
    size, channels = stated_size(known.get("patch_size")), known.get("channels")
    if size and pixels and pixels % math.prod(size) == 0 and channels in (None, pixels // math.prod(size)):
        return (*size, pixels // math.prod(size)), ""
    counts: tuple[Any, ...] = (channels, 3, 1)
    for count in counts:
        edge = math.isqrt(pixels // count) if type(count) is int and count > 0 else 0
        if edge and edge * edge * count == pixels:
            reason = f"its {pixels} values per patch are a square of {count} channels"
            return (edge, edge, count), "" if count == channels else reason
    raise CheckpointError(
        f"{path}: the shape of a patch of {pixels} values is not in the file. Pass patch_size=(height, width)."
    )


def _documents(config: Config, layout: Layout, class_names: Names, normalization: Normalization) -> Files:
    """Return `config.json` with the arguments of the class."""
    simple = not layout.position
    arguments = {} if config["image_size"] is None else {"image_size": config["image_size"]}
    arguments |= {
        "patch_size": config["patch_size"],
        "num_classes": config["classes"] if config["include_top"] else 0,
        "dim": config["hidden_size"],
        "depth": config["num_layers"],
        "heads": config["num_heads"],
        "mlp_dim": config["mlp_dim"],
        "channels": config["channels"],
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


def _layout(config: Config) -> Layout:
    return Layout(
        "vit_pytorch",
        next((name for name, style in STYLES.items() if suits(style, config)), "1.18"),
    )


def _fit(layout: Layout, config: Config) -> Layout:
    suited = [name for name, style in STYLES.items() if suits(style, config)]
    if layout.style not in suited:
        raise CheckpointError(
            f"vit-pytorch {layout.style} has no such model. Write it with naming={' or '.join(map(repr, suited))}."
        )
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
        conditions=(
            (
                lambda config: not any(suits(style, config) for style in STYLES.values()),
                "none of its versions combines these heads, patch norms, tokens, pooling and final norm",
            ),
            (
                lambda config: config["position_embedding"] == "learned" and _torch.ANY_SIZE[0](config),
                _torch.ANY_SIZE[1],
            ),
        ),
        layout=_layout,
        fit=_fit,
        styles={name: functools.partial(dataclasses.replace, style=name) for name in STYLES},
        tensors="safetensors",
        documents=_documents,
    ),
)
