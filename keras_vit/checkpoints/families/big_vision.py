"""big_vision's `.npz` files of Vision Transformers, its towers of image-text models included.

References:
    - [big_vision](https://github.com/google-research/big_vision)
"""

from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout
from keras_vit.checkpoints.families import _flax
from keras_vit.checkpoints.families.family import ANY, Family, Writing
from keras_vit.checkpoints.families.vision_transformer import CLASS_TOKEN
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.rules import Rule, rule
from keras_vit.models.normalization import SYMMETRIC


def rules(layout: Layout) -> list[Rule]:
    """Return the rules of a Vision Transformer in this layout."""
    result = _flax.rules(layout)
    if layout.map_names:
        body = "MAPHead_0/" if layout.map_names[0][0].startswith("MAPHead_0/") else ""
        result.append(rule(f"{body}probe", "MAPHead_0/probe"))
    for stored, variable in layout.map_names:
        leaves = _flax.LEAVES[variable.rpartition("_")[0]]
        result += [rule(f"{stored}/{leaf}", f"MAPHead_0/{variable}/{leaf}") for leaf in leaves]
    return result


def recognize(source: TensorSource, hints: Hints) -> Checkpoint | None:
    """Return the checkpoint that a file holds, or None for another project's file."""
    checkpoint = _flax.recognize(source, hints, "big_vision", rules)
    if checkpoint is not None and checkpoint.arguments["position_embedding"] == "none":
        checkpoint.arguments["position_embedding"] = "sincos2d"
        checkpoint.alternatives["position_embedding"] = ("none",)
        checkpoint.assumed["position_embedding"] = "big_vision's files without a position table use 'sincos2d'"
    return checkpoint


FAMILY = Family(
    "big_vision",
    recognize,
    rules,
    input_normalization=SYMMETRIC,
    writing=Writing(
        values={
            "pooling": ("token", "gap", "map"),
            "position_embedding": ("learned", "sincos2d"),
            "representation_size": ANY,
        },
        conditions=(CLASS_TOKEN,),
        layout=lambda config: Layout(
            "big_vision", "linen", "pos_embedding", "none", block_names=_flax.LINEN_BLOCK, map_names=_flax.MAP_HEAD
        ),
        can_stack=True,
    ),
)
