"""Recognises Google's `.npz` checkpoints: Vision Transformers, hybrids, big_vision, and BiT."""

import dataclasses
import re

from absl import logging

from keras_vit.checkpoints import architecture, bit_names, flax_names
from keras_vit.checkpoints.layout import Checkpoint, Layout, variable_shapes
from keras_vit.checkpoints.rules import Rule, bind_stored
from keras_vit.checkpoints.source import TensorSource

_VIT_ANCHOR = re.compile(r"(?<![^/])embedding/kernel$")
_BIT_ANCHOR = re.compile(r"(?<![^/])(root_block/conv_root/kernel|resnet/root_block/standardized_conv2d(_\d+)?/kernel)$")
_ODD_CONVOLUTION = re.compile(r"/standardized_conv2d_\d+/")


def rules(layout: Layout) -> list[Rule]:
    """Returns the rules of a layout that this module recognised."""
    if layout.style in ("bit", "big_transfer"):
        return bit_names.bit_rules(layout)
    return flax_names.vit_rules(layout)


def recognise(source: TensorSource, num_heads: int | None, prefix: str | None = None) -> Checkpoint | None:
    """Returns what `source` holds, or None if it is none of these.

    Args:
        source: An open file.
        num_heads: Unused: these files show their heads.
        prefix: Where the tree of parameters begins, such as `"params/ema/"`; None for the usual place.
    """
    for anchor, build in ((_VIT_ANCHOR, _vit), (_BIT_ANCHOR, _bit)):
        prefixes = flax_names.find_prefixes(source.tensors, anchor)
        if prefix is not None:
            prefixes = [found for found in prefixes if found == prefix]
        if prefixes:
            return build(source, prefixes)
    return None


def _names(source: TensorSource, prefixes: list[str]) -> tuple[dict[str, str], list[str]]:
    """Returns {name without prefix: stored name} of the first tree, and the names outside it."""
    chosen = prefixes[0]
    others = [prefix for prefix in _all_trees(source) if prefix != chosen and prefix.startswith(chosen)]
    inside = {
        name[len(chosen) :]: name
        for name in source.tensors
        if name.startswith(chosen) and not any(name.startswith(other) for other in others)
    }
    inside_names = set(inside.values())
    ignored = [name for name in source.tensors if name not in inside_names]
    if ignored:
        logging.info("%s: reading the tree %r; %d other tensors are left out.", source.path, chosen, len(ignored))
    return inside, ignored


def _all_trees(source: TensorSource) -> list[str]:
    return [
        prefix for anchor in (_VIT_ANCHOR, _BIT_ANCHOR) for prefix in flax_names.find_prefixes(source.tensors, anchor)
    ]


def _vit(source: TensorSource, prefixes: list[str]) -> Checkpoint:
    names, ignored = _names(source, prefixes)
    stored_shapes = {short: source.tensors[name].shape for short, name in names.items()}
    layout = flax_names.find_layout(names, stored_shapes)
    depth = 0
    if layout.stacked:
        depth = max(
            (s[0] for n, s in stored_shapes.items() if n.startswith("Transformer/encoderblock/") and s), default=0
        )
        depth = min(depth, 1024)
    checkpoint = _bound(source, layout, names, ignored, depth)
    found = architecture.infer_vit(checkpoint.shapes, None)
    # Both projects: tanh-approximated GELU, epsilon 1e-6, norm before pooling.
    found |= {"activation": "gelu_tanh", "layer_norm_epsilon": 1e-6, "resnet_numerics": "reference"}
    if found["position_embedding"] == "none" and layout.family == "big_vision":
        found["position_embedding"] = "sincos2d"
        checkpoint.alternatives["position_embedding"] = ("none",)
        checkpoint.assumed["position_embedding"] = "big_vision's files without a position table use 'sincos2d'"
    checkpoint.arguments = found
    return checkpoint


def _bit(source: TensorSource, prefixes: list[str]) -> Checkpoint:
    names, ignored = _names(source, prefixes)
    renamed = {_ODD_CONVOLUTION.sub("/standardized_conv2d/", short): short for short in names}
    renamed = {scheme: short for scheme, short in renamed.items() if scheme != short and scheme not in names}
    for scheme, short in renamed.items():
        names[scheme] = names.pop(short)
    layout = bit_names.find_layout(names, {short: source.tensors[name].shape for short, name in names.items()})
    layout = dataclasses.replace(layout, renamed=tuple(sorted(renamed.items())))
    checkpoint = _bound(source, layout, names, ignored, depth=0)
    checkpoint.kind = "bit"
    checkpoint.arguments = architecture.infer_bit(checkpoint.shapes)
    checkpoint.assumed["image_size"] = "a convolutional network takes images of any size"
    return checkpoint


def _bound(source: TensorSource, layout: Layout, names: dict[str, str], ignored: list[str], depth: int) -> Checkpoint:
    bindings, unexpected = bind_stored(rules(layout), names, depth)
    bindings = [
        dataclasses.replace(binding, stored=tuple(names[short] for short in binding.stored)) for binding in bindings
    ]
    return Checkpoint(
        source,
        layout,
        bindings,
        shapes=variable_shapes(source, bindings, 0),
        arguments={},
        unexpected=[names[short] for short in unexpected],
        ignored=ignored,
    )
