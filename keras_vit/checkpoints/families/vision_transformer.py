"""Google's `.npz` files of Vision Transformers and hybrids: the paper's, AugReg, SAM and GSAM.

References:
    - [vision_transformer](https://github.com/google-research/vision_transformer)
"""

import dataclasses

from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout
from keras_vit.checkpoints.families import _flax
from keras_vit.checkpoints.families.family import ANY, Family, Writing
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.rules import GROUP_NORM_4D, SAME, Rule, rule
from keras_vit.models.normalization import SYMMETRIC

LEGACY_BLOCK = (
    ("LayerNorm_0", "LayerNorm_0"),
    ("MultiHeadDotProductAttention_1", "MultiHeadDotProductAttention_0"),
    ("LayerNorm_2", "LayerNorm_1"),
    ("MlpBlock_3", "MlpBlock_0"),
)


CLASS_TOKEN = (
    lambda config: config["class_token"] != (config["pooling"] in ("token", None)),
    "it has a class token for pooling='token' alone",
)


def rules(layout: Layout) -> list[Rule]:
    """Return the rules of a Vision Transformer or hybrid in this layout."""
    norm = GROUP_NORM_4D if layout.group_norm_4d else SAME
    result = [*_flax.rules(layout), rule("conv_root/kernel", "conv_root/kernel")]
    result += [rule(f"gn_root/{leaf}", f"gn_root/{leaf}", norm) for leaf in ("scale", "bias")]
    unit = "block{b}/unit{u}"
    for part in ("1", "2", "3", "_proj"):
        result.append(rule(f"{unit}/conv{part}/kernel", f"{unit}/conv{part}/kernel"))
        result += [rule(f"{unit}/gn{part}/{leaf}", f"{unit}/gn{part}/{leaf}", norm) for leaf in ("scale", "bias")]
    return result


def recognize(source: TensorSource, hints: Hints) -> Checkpoint | None:
    """Return the checkpoint that a file holds, or None for another project's file."""
    return _flax.recognize(source, hints, "google", rules)


def _legacy(layout: Layout) -> Layout:
    return dataclasses.replace(layout, style="legacy", block_names=LEGACY_BLOCK, group_norm_4d=True)


def _linen(layout: Layout) -> Layout:
    return dataclasses.replace(layout, style="linen", block_names=_flax.LINEN_BLOCK, group_norm_4d=False)


FAMILY = Family(
    "google",
    recognize,
    rules,
    input_normalization=SYMMETRIC,
    writing=Writing(
        values={
            "pooling": ("token", "gap", None),
            "position_embedding": ("learned", "none"),
            **dict.fromkeys(("resnet_blocks", "representation_size"), ANY),
        },
        conditions=(CLASS_TOKEN,),
        layout=lambda config: _legacy(Layout("google", position="Transformer/posembed_input/pos_embedding")),
        styles={"legacy": _legacy, "linen": _linen},
    ),
)
