"""Recognises Google's `.npz` checkpoints: Vision Transformers, hybrids, big_vision, and BiT."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from absl import logging

from keras_vit.checkpoints import architecture, bit_names, flax_names
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.grid import Hints, has_slots, is_square, stated_grids
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


def recognise(source: TensorSource, hints: Hints) -> Checkpoint | None:
    """Return what `source` holds, or None if it is none of these.

    Args:
        source: An open file.
        hints: What the caller knows of it.
    """
    for anchor, build in ((_VIT_ANCHOR, _vit), (_BIT_ANCHOR, _bit)):
        prefixes = flax_names.find_prefixes(source.tensors, anchor)
        if hints.prefix is not None:
            prefixes = [found for found in prefixes if found == hints.prefix]
        if prefixes:
            return build(source, prefixes, hints)
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


def _vit(source: TensorSource, prefixes: list[str], hints: Hints) -> Checkpoint:
    names, ignored = _names(source, prefixes)
    stored_shapes = {short: source.tensors[name].shape for short, name in names.items()}
    layout = flax_names.find_layout(names, stored_shapes)
    layout = dataclasses.replace(layout, slots=_slots(source, layout, stored_shapes, hints))
    checkpoint = _bound(source, layout, names, ignored, _stack_depth(source, stored_shapes) if layout.stacked else 0)
    found = architecture.infer_vit(checkpoint.shapes, None, source.path)
    # Both projects: tanh-approximated GELU, epsilon 1e-6, norm before pooling.
    found |= {"activation": "gelu_tanh", "layer_norm_epsilon": 1e-6, "resnet_numerics": "reference"}
    if found["position_embedding"] == "none" and layout.family == "big_vision":
        found["position_embedding"] = "sincos2d"
        checkpoint.alternatives["position_embedding"] = ("none",)
        checkpoint.assumed["position_embedding"] = "big_vision's files without a position table use 'sincos2d'"
    checkpoint.arguments = found
    return checkpoint


def _stack_depth(source: TensorSource, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the number of blocks that are stacked in each tensor."""
    depths = {shape[:1] for name, shape in shapes.items() if name.startswith("Transformer/encoderblock/")}
    depth = max(depths, default=())
    if len(depths) != 1 or not depth or not 0 < depth[0] <= architecture.MAX_BLOCKS:
        raise CheckpointError(
            f"{source.path}: the tensors below 'Transformer/encoderblock/' must stack the same number of blocks, at "
            f"most {architecture.MAX_BLOCKS}. Received: {', '.join(map(str, sorted(depths)))[:200]}."
        )
    return depth[0]


def _slots(source: TensorSource, layout: Layout, shapes: Mapping[str, tuple[int, ...]], hints: Hints) -> str:
    """Return whether the class token has an entry in the position table.

    The table's name says it, unless the grid is known. big_vision itself reads a table under the later name with one
    entry more than a square as one with an entry for the class token.
    """
    table, kernel = shapes.get(layout.position, ()), shapes.get("embedding/kernel", ())
    if "cls" not in shapes or len(table) != 3 or len(kernel) != 4 or 0 in kernel:
        return layout.slots
    stub: dict[str, Any] = {"patch_size": kernel[:2], "resnet_blocks": None}
    if "conv_root/kernel" in shapes:
        stub["resnet_blocks"] = architecture.resnet_blocks(shapes, source.path)
    known = has_slots(table[1], 1, stated_grids(source, stub, hints))
    if known is None and layout.slots == "none" and not is_square(table[1]):
        model = hints.model_grid(stub)
        known = has_slots(table[1], 1, [model] if model else [])
        if known is None and is_square(table[1] - 1):
            logging.info(
                "%s: the first of %d position embeddings is taken for the class token's.", source.path, table[1]
            )
            known = True
    return layout.slots if known is None else "prefix" if known else "none"


def _bit(source: TensorSource, prefixes: list[str], hints: Hints) -> Checkpoint:
    names, ignored = _names(source, prefixes)
    renamed = {_ODD_CONVOLUTION.sub("/standardized_conv2d/", short): short for short in names}
    renamed = {scheme: short for scheme, short in renamed.items() if scheme != short and scheme not in names}
    for scheme, short in renamed.items():
        names[scheme] = names.pop(short)
    layout = bit_names.find_layout(names, {short: source.tensors[name].shape for short, name in names.items()})
    layout = dataclasses.replace(layout, renamed=tuple(sorted(renamed.items())))
    checkpoint = _bound(source, layout, names, ignored, depth=0)
    checkpoint.kind = "bit"
    checkpoint.arguments = architecture.infer_bit(checkpoint.shapes, source.path)
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
