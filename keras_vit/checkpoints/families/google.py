"""Google's `.npz` files of Vision Transformers: vision_transformer (hybrids, AugReg, SAM, GSAM) and big_vision.

References:
    - [vision_transformer](https://github.com/google-research/vision_transformer)
    - [big_vision](https://github.com/google-research/big_vision)
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping

from absl import logging

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout, Shape, variable_shapes
from keras_vit.checkpoints.families.family import ANY, Config, Family, Writing
from keras_vit.checkpoints.formats.tensors import CheckpointError, TensorSource
from keras_vit.checkpoints.position_grid import has_slots, is_square, model_grid, stated_grids
from keras_vit.checkpoints.rules import GROUP_NORM_4D, SAME, STACKED, WITHOUT_SLOT, Rule, bind_stored, rule
from keras_vit.models.normalization import SYMMETRIC

_ANCHOR = re.compile(r"(?<![^/])embedding/kernel$")
BIT_ANCHOR = re.compile(r"(?<![^/])(root_block/conv_root/kernel|resnet/root_block/standardized_conv2d(_\d+)?/kernel)$")
_PREFERRED_PREFIXES = ("", "params/", "opt/target/", "img/", "params/img/", "opt/target/img/")
_BLOCKS, _STACK = "Transformer/encoderblock_{i}/", "Transformer/encoderblock/"
# The name of the position table shows whether the class token has an entry in the table.
_POSITIONS = {
    "Transformer/posembed_input/pos_embedding": "prefix",
    "Transformer/pos_embedding": "prefix",
    "pos_embedding": "none",
}
_LEAVES: Mapping[str, tuple[str, ...]] = {
    "LayerNorm": ("scale", "bias"),
    "MultiHeadDotProductAttention": tuple(
        f"{part}/{leaf}" for part in ("query", "key", "value", "out") for leaf in ("kernel", "bias")
    ),
    "MlpBlock": tuple(f"Dense_{index}/{leaf}" for index in (0, 1) for leaf in ("kernel", "bias")),
}
# Later versions number the modules of each class separately. The published files number all modules of a block in one
# sequence.
_LINEN_BLOCK = tuple((n, n) for n in ("LayerNorm_0", "LayerNorm_1", "MultiHeadDotProductAttention_0", "MlpBlock_0"))
_LEGACY_BLOCK = (
    ("LayerNorm_0", "LayerNorm_0"),
    ("MultiHeadDotProductAttention_1", "MultiHeadDotProductAttention_0"),
    ("LayerNorm_2", "LayerNorm_1"),
    ("MlpBlock_3", "MlpBlock_0"),
)
_LEGACY_MARK = "MultiHeadDotProductAttention_1"
# The attention pooling has one norm.
_LINEN_POOL = (_LINEN_BLOCK[0], *_LINEN_BLOCK[2:])
_LEGACY_POOL = (("LayerNorm_2", "LayerNorm_0"), _LEGACY_BLOCK[1], _LEGACY_BLOCK[3])
_MAP_HEAD = tuple((f"MAPHead_0/{name}", name) for _, name in _LINEN_POOL)


@dataclasses.dataclass(frozen=True)
class Tree:
    """A tree of parameters in a file."""

    names: dict[str, str]  # maps names without the prefix to stored names
    shapes: dict[str, Shape]  # by name without the prefix
    ignored: list[str]  # stored names outside the tree
    prefix: str  # of the stored names


def find_tree(source: TensorSource, anchor: re.Pattern[str], hints: Hints) -> Tree | None:
    """Return the most likely tree with a name that matches `anchor`, or None."""
    prefixes = _find_prefixes(source.tensors, anchor)
    if hints.prefix is not None:
        prefixes = [prefix for prefix in prefixes if prefix == hints.prefix]
    if not prefixes:
        return None
    chosen = prefixes[0]
    trees = _find_prefixes(source.tensors, _ANCHOR) + _find_prefixes(source.tensors, BIT_ANCHOR)
    inner = tuple(prefix for prefix in trees if prefix != chosen and prefix.startswith(chosen))
    names = {n[len(chosen) :]: n for n in source.tensors if n.startswith(chosen) and not n.startswith(inner or ("\0",))}
    inside = set(names.values())
    shapes = {short: source.tensors[name].shape for short, name in names.items()}
    parent = chosen[: chosen[:-1].rfind("/") + 1]
    if chosen and hints.prefix is None and any(parent + short in source.tensors for short in names):
        raise CheckpointError(f"{source.path} has no patch embedding at {parent!r}. A copy is at prefix={chosen!r}.")
    return Tree(names, shapes, [name for name in source.tensors if name not in inside], chosen)


def _find_prefixes(names: Iterable[str], anchor: re.Pattern[str]) -> list[str]:
    found = {name[: match.start()] for name in names if (match := anchor.search(name))}
    found = {prefix for prefix in found if prefix == "" or prefix.endswith("/")}
    order = {prefix: index for index, prefix in enumerate(_PREFERRED_PREFIXES)}
    return sorted(found, key=lambda prefix: (order.get(prefix, len(order)), len(prefix), prefix))


def bind(source: TensorSource, layout: Layout, rules: list[Rule], tree: Tree, depth: int = 0) -> Checkpoint:
    """Return the checkpoint of a tree. The arguments of the model are added later."""
    bindings, unexpected = bind_stored(rules, tree.names, depth)
    bindings = [dataclasses.replace(b, stored=tuple(tree.names[short] for short in b.stored)) for b in bindings]
    if tree.ignored:
        logging.info("%s: reading %r and skipping %d other tensors.", source.path, tree.prefix, len(tree.ignored))
    shapes = variable_shapes(source, bindings, heads=0)
    unexpected = [tree.names[short] for short in unexpected]
    return Checkpoint(source, layout, bindings, shapes, unexpected=unexpected, ignored=tree.ignored)


def find_layout(tree: Tree) -> Layout:
    """Return the layout of a Vision Transformer in the family `"google"` or `"big_vision"`."""
    names = tree.names
    stacked = any(name.startswith(_STACK) for name in names)
    block = _STACK if stacked else _BLOCKS.format(i=0)
    legacy = any(name.startswith(f"{block}{_LEGACY_MARK}/") for name in names)
    map_names: tuple[tuple[str, str], ...] = ()
    if any(name.startswith("MAPHead_0/") for name in names):
        map_names = _MAP_HEAD
    elif "probe" in names:  # models from the time of ViT-G inline the attention pooling
        map_names = _LEGACY_POOL if any(name.startswith(f"{_LEGACY_MARK}/") for name in names) else _LINEN_POOL
    position = next((name for name in _POSITIONS if name in names), "")
    later = position == "pos_embedding" or stacked or map_names or not (position or legacy)
    return Layout(
        family="big_vision" if later and "conv_root/kernel" not in names else "google",
        style="legacy" if legacy else "linen",
        position=position,
        slots=_POSITIONS.get(position, "prefix"),
        group_norm_4d=len(tree.shapes.get("gn_root/scale", ())) == 4,
        stacked=stacked,
        block_names=_LEGACY_BLOCK if legacy else _LINEN_BLOCK,
        map_names=map_names,
    )


def rules(layout: Layout) -> list[Rule]:
    """Return the rules of a Vision Transformer or hybrid in this layout."""
    table, result = architecture.TABLE, []
    if layout.slots == "none" and layout.position:
        result.append(rule(("cls", layout.position), ("cls/cls", table), WITHOUT_SLOT))
    result.append(rule("cls", "cls/cls"))
    if layout.position:
        result.append(rule(layout.position, table))
    for leaf in ("kernel", "bias"):
        result += [rule(f"{name}/{leaf}", f"{name}/{leaf}") for name in ("embedding", "pre_logits", "head")]
    result += [rule(f"Transformer/encoder_norm/{leaf}", f"encoder_norm/{leaf}") for leaf in ("scale", "bias")]
    for stored, variable in layout.block_names:
        for leaf in _LEAVES[variable.rpartition("_")[0]]:
            if layout.stacked:
                result.append(rule(f"{_STACK}{stored}/{leaf}", f"encoderblock_{{*}}/{variable}/{leaf}", STACKED))
            else:
                result.append(rule(f"{_BLOCKS}{stored}/{leaf}", f"encoderblock_{{i}}/{variable}/{leaf}"))
    return result + (_resnet_rules(layout) if layout.family == "google" else _pooling_rules(layout))


def _resnet_rules(layout: Layout) -> list[Rule]:
    """Return the rules of a hybrid's ResNet. Only vision_transformer has hybrids."""
    unit, norm = "block{b}/unit{u}", GROUP_NORM_4D if layout.group_norm_4d else SAME
    kernels = ["conv_root/kernel", *(f"{unit}/conv{part}/kernel" for part in ("1", "2", "3", "_proj"))]
    norms = ["gn_root", *(f"{unit}/gn{part}" for part in ("1", "2", "3", "_proj"))]
    return [rule(name, name) for name in kernels] + [
        rule(f"{name}/{leaf}", f"{name}/{leaf}", norm) for name in norms for leaf in ("scale", "bias")
    ]


def _pooling_rules(layout: Layout) -> list[Rule]:
    """Return the rules of the attention pooling. Only big_vision has attention pooling."""
    if not layout.map_names:
        return []
    body = "MAPHead_0/" if layout.map_names[0][0].startswith("MAPHead_0/") else ""
    return [rule(f"{body}probe", "MAPHead_0/probe")] + [
        rule(f"{stored}/{leaf}", f"MAPHead_0/{variable}/{leaf}")
        for stored, variable in layout.map_names
        for leaf in _LEAVES[variable.rpartition("_")[0]]
    ]


def _recognize(source: TensorSource, hints: Hints, family: str) -> Checkpoint | None:
    """Return the checkpoint in a file, or None if the file does not belong to the family."""
    tree = find_tree(source, _ANCHOR, hints)
    if tree is None or (layout := find_layout(tree)).family != family:
        return None
    layout = dataclasses.replace(layout, slots=_slots(source, layout, tree.shapes, hints))
    depth = _stack_depth(source, tree.shapes) if layout.stacked else 0
    checkpoint = bind(source, layout, rules(layout), tree, depth)
    checkpoint.arguments = architecture.infer_vit(checkpoint.shapes, None, source.path)
    computed = family == "big_vision" and checkpoint.arguments["pooling"] == "gap"
    always = {"position_embedding": None} if computed else {}
    architecture.check_type(source, checkpoint.arguments, always, wanted=hints.wanted)
    # Both projects use GELU with tanh, an epsilon of 1e-6, and the norm before the pooling.
    checkpoint.arguments |= {"activation": "gelu_tanh", "layer_norm_epsilon": 1e-6, "resnet_numerics": "reference"}
    if family == "big_vision" and checkpoint.arguments["position_embedding"] == "none":
        checkpoint.arguments["position_embedding"] = "sincos2d"
        checkpoint.alternatives["position_embedding"] = ("none",)
        checkpoint.assumed["position_embedding"] = "big_vision's files without a position table use 'sincos2d'"
    return checkpoint


def _stack_depth(source: TensorSource, shapes: Mapping[str, Shape]) -> int:
    """Return the number of blocks that are stacked in each tensor."""
    depths = {shape[:1] for name, shape in shapes.items() if name.startswith(_STACK)}
    depth = max(depths, default=())
    if len(depths) != 1 or not depth or not 0 < depth[0] <= architecture.MAX_BLOCKS:
        raise CheckpointError(
            f"{source.path}: the tensors below '{_STACK}' must stack the same number of blocks, at most "
            f"{architecture.MAX_BLOCKS}. Received: {', '.join(map(str, sorted(depths)))[:200]}."
        )
    return depth[0]


def _slots(source: TensorSource, layout: Layout, shapes: Mapping[str, Shape], hints: Hints) -> str:
    """Return `"prefix"` if the class token has an entry in the position table, and `"none"` otherwise.

    A known grid decides, or else the name of the table. If a table named `pos_embedding` has one more entry than a
    square grid, the first entry belongs to the class token, as in big_vision.
    """
    table, kernel = shapes.get(layout.position, ()), shapes.get("embedding/kernel", ())
    if "cls" not in shapes or len(table) != 3 or len(kernel) != 4 or 0 in kernel:
        return layout.slots
    blocks = architecture.resnet_blocks(shapes, source.path) if "conv_root/kernel" in shapes else None
    stub = {"patch_size": kernel[:2], "resnet_blocks": blocks}
    known = has_slots(table[1], 1, stated_grids(source, hints, stub))
    if known is None and layout.slots == "none" and not is_square(table[1]):
        known = has_slots(table[1], 1, model_grid(hints, stub))
        if known is None and is_square(table[1] - 1):
            logging.info("%s: the first of %d positions is assumed to be the class token's.", source.path, table[1])
            known = True
    return layout.slots if known is None else "prefix" if known else "none"


def _legacy(layout: Layout) -> Layout:
    return dataclasses.replace(layout, style="legacy", block_names=_LEGACY_BLOCK, group_norm_4d=True)


def _linen(layout: Layout) -> Layout:
    return dataclasses.replace(layout, style="linen", block_names=_LINEN_BLOCK, group_norm_4d=False)


def _limits(config: Config) -> list[str]:
    fits = config["class_token"] == (config["pooling"] in ("token", None))
    return [] if fits else ["it has a class token only for pooling='token'"]


FAMILIES = (
    Family(
        "google",
        functools.partial(_recognize, family="google"),
        rules,
        input_normalization=SYMMETRIC,
        writing=Writing(
            values={
                "pooling": ("token", "gap", None),
                "position_embedding": ("learned", "none"),
                **dict.fromkeys(("resnet_blocks", "representation_size"), ANY),
            },
            limits=_limits,
            layout=lambda config: _legacy(Layout("google", position="Transformer/posembed_input/pos_embedding")),
            styles={"legacy": _legacy, "linen": _linen},
        ),
    ),
    Family(
        "big_vision",
        functools.partial(_recognize, family="big_vision"),
        rules,
        input_normalization=SYMMETRIC,
        writing=Writing(
            values={
                "pooling": ("token", "gap", "map"),
                "position_embedding": ("learned", "sincos2d"),
                "representation_size": ANY,
            },
            limits=_limits,
            layout=lambda config: Layout(
                "big_vision", "linen", "pos_embedding", "none", block_names=_LINEN_BLOCK, map_names=_MAP_HEAD
            ),
            can_stack=True,
        ),
    ),
)
