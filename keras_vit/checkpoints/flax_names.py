"""Names and shapes of Google's Flax checkpoints: vision_transformer, AugReg, SAM, hybrids, big_vision.

References:
    - [vision_transformer](https://github.com/google-research/vision_transformer)
    - [big_vision](https://github.com/google-research/big_vision)
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from keras_vit.checkpoints.layout import Layout
from keras_vit.checkpoints.rules import GROUP_NORM_4D, SAME, STACKED, WITHOUT_SLOT, Rule, rule

# The published files count all modules of a block together, later versions count each class by itself.
LEGACY_BLOCK = (
    ("LayerNorm_0", "LayerNorm_0"),
    ("MultiHeadDotProductAttention_1", "MultiHeadDotProductAttention_0"),
    ("LayerNorm_2", "LayerNorm_1"),
    ("MlpBlock_3", "MlpBlock_0"),
)
_MAP_MODULES = ("MultiHeadDotProductAttention_0", "LayerNorm_0", "MlpBlock_0")
LINEN_BLOCK = tuple((name, name) for name in ("LayerNorm_0", "LayerNorm_1", *_MAP_MODULES[::2]))
MAP_HEAD = tuple((f"MAPHead_0/{name}", name) for name in _MAP_MODULES)

_LEAVES = {
    "LayerNorm": ("scale", "bias"),
    "MultiHeadDotProductAttention": tuple(
        f"{part}/{leaf}" for part in ("query", "key", "value", "out") for leaf in ("kernel", "bias")
    ),
    "MlpBlock": tuple(f"Dense_{index}/{leaf}" for index in (0, 1) for leaf in ("kernel", "bias")),
}
# The name where the table lies says whether the class token was joined before or after positions were added.
POSITIONS = {
    "Transformer/posembed_input/pos_embedding": "prefix",
    "Transformer/pos_embedding": "prefix",
    "pos_embedding": "none",
}
_PREFERRED_PREFIXES = ("", "params/", "opt/target/", "img/", "params/img/", "opt/target/img/")


def find_prefixes(names: Iterable[str], anchor: re.Pattern[str]) -> list[str]:
    """Returns the prefixes under which a name matching `anchor` lies, the likeliest first."""
    found = {name[: match.start()] for name in names if (match := anchor.search(name))}
    found = {prefix for prefix in found if prefix == "" or prefix.endswith("/")}
    order = {prefix: index for index, prefix in enumerate(_PREFERRED_PREFIXES)}
    return sorted(found, key=lambda prefix: (order.get(prefix, len(order)), len(prefix), prefix))


def renumber(modules: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Numbers modules of each class from zero, in the order of their numbers.

    Args:
        modules: Names such as `LayerNorm_0`, `LayerNorm_2`, `MlpBlock_3`.

    Returns:
        Pairs of old and new name, such as `("LayerNorm_2", "LayerNorm_1")`.
    """
    numbers = defaultdict(set)
    for module in modules:
        kind, _, number = module.rpartition("_")
        if kind in _LEAVES and number.isdigit() and len(number) < 6:
            numbers[kind].add(number)
    return tuple(
        (f"{kind}_{number}", f"{kind}_{index}")
        for kind, found in sorted(numbers.items())
        for index, number in enumerate(sorted(found, key=int))
    )


def find_layout(names: Iterable[str], shapes: Mapping[str, tuple[int, ...]]) -> Layout:
    """Returns the layout of a Vision Transformer whose names have lost their prefix."""
    names = list(names)
    stacked = any(name.startswith("Transformer/encoderblock/") for name in names)
    block = "Transformer/encoderblock/" if stacked else "Transformer/encoderblock_0/"
    block_names = renumber({name.removeprefix(block).split("/")[0] for name in names if name.startswith(block)})
    map_names = MAP_HEAD if any(name.startswith("MAPHead_0/") for name in names) else ()
    if "probe" in names:  # variants from the time of ViT-G had the attention pooling inlined
        map_names = renumber({name.split("/")[0] for name in names})
    position = next((name for name in POSITIONS if name in names), "")
    slots = POSITIONS.get(position, "prefix")
    legacy = block_names and dict(block_names) != dict(LINEN_BLOCK)
    plain = position == "pos_embedding" or stacked or map_names or not (position or legacy)
    hybrid = "conv_root/kernel" in names
    return Layout(
        family="big_vision" if plain and not hybrid else "google",
        style="legacy" if legacy else "linen",
        position=position,
        slots=slots,
        group_norm_4d=len(shapes.get("gn_root/scale", ())) == 4,
        stacked=stacked,
        block_names=block_names or LINEN_BLOCK,
        map_names=map_names,
    )


def vit_rules(layout: Layout) -> list[Rule]:
    """Returns the rules of a Vision Transformer or hybrid in this layout."""
    rules = _token_rules(layout)
    for leaf in ("kernel", "bias"):
        rules += [rule(f"{name}/{leaf}", f"{name}/{leaf}") for name in ("embedding", "pre_logits", "head")]
    rules += [rule(f"Transformer/encoder_norm/{leaf}", f"encoder_norm/{leaf}") for leaf in ("scale", "bias")]
    for stored, variable in layout.block_names:
        for leaf in _LEAVES[variable.rpartition("_")[0]]:
            if layout.stacked:
                names = f"Transformer/encoderblock/{stored}/{leaf}", f"encoderblock_{{*}}/{variable}/{leaf}"
                rules.append(rule(*names, STACKED))
            else:
                names = f"Transformer/encoderblock_{{i}}/{stored}/{leaf}", f"encoderblock_{{i}}/{variable}/{leaf}"
                rules.append(rule(*names))
    if layout.map_names:
        first = layout.map_names[0][0]
        rules.append(rule("MAPHead_0/probe" if first.startswith("MAPHead_0/") else "probe", "MAPHead_0/probe"))
    for stored, variable in layout.map_names:
        rules += [
            rule(f"{stored}/{leaf}", f"MAPHead_0/{variable}/{leaf}") for leaf in _LEAVES[variable.rpartition("_")[0]]
        ]
    return rules + _resnet_rules(layout)


def _token_rules(layout: Layout) -> list[Rule]:
    table = "posembed_input/pos_embedding"
    rules = []
    if layout.slots == "none" and layout.position:
        rules.append(rule(("cls", layout.position), ("cls/cls", table), WITHOUT_SLOT))
    rules.append(rule("cls", "cls/cls"))
    if layout.position:
        rules.append(rule(layout.position, table))
    return rules


def _resnet_rules(layout: Layout) -> list[Rule]:
    norm = GROUP_NORM_4D if layout.group_norm_4d else SAME
    rules = [rule("conv_root/kernel", "conv_root/kernel")]
    rules += [rule(f"gn_root/{leaf}", f"gn_root/{leaf}", norm) for leaf in ("scale", "bias")]
    unit = "block{b}/unit{u}"
    for part in ("1", "2", "3", "_proj"):
        rules.append(rule(f"{unit}/conv{part}/kernel", f"{unit}/conv{part}/kernel"))
        rules += [rule(f"{unit}/gn{part}/{leaf}", f"{unit}/gn{part}/{leaf}", norm) for leaf in ("scale", "bias")]
    return rules
