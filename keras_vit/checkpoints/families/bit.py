"""BiT's `.npz` files, with the names of big_transfer (the published files) or of big_vision.

References:
    - [Big Transfer](https://github.com/google-research/big_transfer)
    - [big_vision](https://github.com/google-research/big_vision)
"""

import dataclasses
import re

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout
from keras_vit.checkpoints.families import google
from keras_vit.checkpoints.families.family import ANY, Family, Writing
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.rules import DENSE_AS_CONV, GROUP_NORM_4D, SAME, Rule, Transform, rule
from keras_vit.models.normalization import SYMMETRIC

_UNIT = "block{b}/unit{u:02d}"
_NUMBERED = re.compile(r"/standardized_conv2d_\d+/")
# big_transfer pads the root's max-pooling with zeros. Other projects write the same names and pad differently.
_PADDING = (
    "files with big_transfer's names do not specify the padding of the root's max-pooling; the published BiT-S and "
    "BiT-M were trained with pool_padding='zeros'"
)


def _big_vision_rules(layout: Layout) -> list[Rule]:
    names = ["root_block/conv_root/kernel", "head/kernel", "head/bias"]
    names += [f"{_UNIT}/conv{part}/kernel" for part in ("1", "2", "3", "_proj")]
    norms = [f"{_UNIT}/gn{index}" for index in (1, 2, 3)] + ["norm-pre-head"]
    return [rule(name, name) for name in names] + [
        rule(f"{name}/{leaf}", f"{name}/{leaf}", _norm(layout)) for name in norms for leaf in ("scale", "bias")
    ]


def _big_transfer_rules(layout: Layout) -> list[Rule]:
    convolution, unit = "standardized_conv2d/kernel", f"resnet/{_UNIT}"
    result = [
        rule(f"resnet/root_block/{convolution}", "root_block/conv_root/kernel"),
        rule(f"{unit}/a/proj/{convolution}", f"{_UNIT}/conv_proj/kernel"),
        rule("resnet/head/conv2d/kernel", "head/kernel", DENSE_AS_CONV),
        rule("resnet/head/conv2d/bias", "head/bias"),
    ]
    norms = [("resnet/group_norm", "norm-pre-head")]
    for index, letter in enumerate("abc", start=1):
        result.append(rule(f"{unit}/{letter}/{convolution}", f"{_UNIT}/conv{index}/kernel"))
        norms.append((f"{unit}/{letter}/group_norm", f"{_UNIT}/gn{index}"))
    for stored, variable in norms:
        result.append(rule(f"{stored}/gamma", f"{variable}/scale", _norm(layout)))
        result.append(rule(f"{stored}/beta", f"{variable}/bias", _norm(layout)))
    return result


def _norm(layout: Layout) -> Transform:
    return GROUP_NORM_4D if layout.group_norm_4d else SAME


def _recognize_big_transfer(source: TensorSource, hints: Hints) -> Checkpoint | None:
    tree = google.find_tree(source, google.BIT_ANCHOR, hints)
    if tree is None or not any(name.startswith("resnet/") for name in tree.names):
        return None
    # Some exports number the convolutions.
    renamed = {_NUMBERED.sub("/standardized_conv2d/", short): short for short in tree.names}
    renamed = {scheme: short for scheme, short in renamed.items() if scheme != short and scheme not in tree.names}
    for scheme, short in renamed.items():
        tree.names[scheme] = tree.names.pop(short)
    four_dimensional = len(tree.shapes.get("resnet/group_norm/gamma", ())) == 4
    layout = Layout("google", group_norm_4d=four_dimensional, renamed=tuple(sorted(renamed.items())))
    checkpoint = _checkpoint(source, layout, _big_transfer_rules(layout), tree)
    checkpoint.alternatives["pool_padding"] = ("zeros", "edge")
    checkpoint.doubtful["pool_padding"] = _PADDING
    return checkpoint


def _recognize_big_vision(source: TensorSource, hints: Hints) -> Checkpoint | None:
    tree = google.find_tree(source, google.BIT_ANCHOR, hints)
    if tree is None:
        return None
    layout = Layout("big_vision", group_norm_4d=len(tree.shapes.get("norm-pre-head/scale", ())) == 4)
    return _checkpoint(source, layout, _big_vision_rules(layout), tree)


def _checkpoint(source: TensorSource, layout: Layout, rules: list[Rule], tree: google.Tree) -> Checkpoint:
    checkpoint = dataclasses.replace(google.bind(source, layout, rules, tree), kind="bit")
    checkpoint.arguments = {**architecture.infer_bit(checkpoint.shapes, source.path), "pool_padding": "infinity"}
    checkpoint.assumed["image_size"] = "a convolutional network takes images of any size"
    return checkpoint


FAMILIES = (
    Family(
        "google",
        _recognize_big_transfer,
        _big_transfer_rules,
        kind="bit",
        input_normalization=SYMMETRIC,
        writing=Writing(values={"pool_padding": ANY}, layout=lambda config: Layout("google")),
    ),
    Family(
        "big_vision",
        _recognize_big_vision,
        _big_vision_rules,
        kind="bit",
        input_normalization=SYMMETRIC,
        writing=Writing(
            values={"pool_padding": ("infinity", "edge")},  # both give the same maximum
            layout=lambda config: Layout("big_vision", group_norm_4d=True),
        ),
    ),
)
