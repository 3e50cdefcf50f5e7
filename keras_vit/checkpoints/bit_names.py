"""Names and shapes of BiT checkpoints, in the two schemes in which they are published.

References:
    - [Big Transfer](https://github.com/google-research/big_transfer)
    - [big_vision](https://github.com/google-research/big_vision)
"""

from collections.abc import Iterable, Mapping

from keras_vit.checkpoints.layout import Layout
from keras_vit.checkpoints.rules import DENSE_AS_CONV, GROUP_NORM_4D, SAME, Rule, rule

_UNIT = "block{b}/unit{u:02d}"


def find_layout(names: Iterable[str], shapes: Mapping[str, tuple[int, ...]]) -> Layout:
    """Returns the layout of a BiT file whose names have lost their prefix."""
    if any(name.startswith("resnet/") for name in names):
        norm = shapes.get("resnet/group_norm/gamma", ())
        return Layout(family="google", style="big_transfer", group_norm_4d=len(norm) == 4)
    norm = shapes.get("norm-pre-head/scale", ())
    return Layout(family="big_vision", style="bit", group_norm_4d=len(norm) == 4)


def bit_rules(layout: Layout) -> list[Rule]:
    """Returns the rules of a BiT ResNet in this layout."""
    norm = GROUP_NORM_4D if layout.group_norm_4d else SAME
    return _big_transfer_rules(norm) if layout.style == "big_transfer" else _big_vision_rules(norm)


def _big_vision_rules(norm) -> list[Rule]:
    names = ["root_block/conv_root/kernel", "head/kernel", "head/bias"]
    names += [f"{_UNIT}/conv{part}/kernel" for part in ("1", "2", "3", "_proj")]
    norms = [f"{_UNIT}/gn{index}" for index in (1, 2, 3)] + ["norm-pre-head"]
    return [rule(name, name) for name in names] + [
        rule(f"{name}/{leaf}", f"{name}/{leaf}", norm) for name in norms for leaf in ("scale", "bias")
    ]


def _big_transfer_rules(norm) -> list[Rule]:
    convolution = "standardized_conv2d/kernel"
    unit = f"resnet/{_UNIT}"
    rules = [
        rule(f"resnet/root_block/{convolution}", "root_block/conv_root/kernel"),
        rule(f"{unit}/a/proj/{convolution}", f"{_UNIT}/conv_proj/kernel"),
        rule("resnet/head/conv2d/kernel", "head/kernel", DENSE_AS_CONV),
        rule("resnet/head/conv2d/bias", "head/bias"),
    ]
    norms = [("resnet/group_norm", "norm-pre-head")]
    for index, letter in enumerate("abc", start=1):
        rules.append(rule(f"{unit}/{letter}/{convolution}", f"{_UNIT}/conv{index}/kernel"))
        norms.append((f"{unit}/{letter}/group_norm", f"{_UNIT}/gn{index}"))
    for stored, variable in norms:
        rules.append(rule(f"{stored}/gamma", f"{variable}/scale", norm))
        rules.append(rule(f"{stored}/beta", f"{variable}/bias", norm))
    return rules
