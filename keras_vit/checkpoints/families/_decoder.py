"""Rules and arguments of the decoder, shared by the two families of masked autoencoders."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Shape
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import _torch
from keras_vit.checkpoints.families.family import ANY
from keras_vit.checkpoints.rules import Rule, Transform, rule
from keras_vit.models import ViTConfig

BLOCK = "decoder_block_{i}"
# The head belongs to the model that is fine-tuned.
ALTERNATIVES: Mapping[str, tuple[Any, ...]] = {name: ANY for name in ViTConfig.OF_HEAD}
VALUES: Mapping[str, tuple[Any, ...]] = {"pooling": ANY}
_HEADS = 16  # of all published decoders


def rules(prefix: str, table: str) -> list[Rule]:
    """Return the rules of a decoder's tensors but those of its blocks."""
    return [
        rule(f"{prefix}mask_token", "mask_token/mask_token"),
        rule(table, "decoder_posembed/pos_embedding"),
        *_torch.dense(f"{prefix}decoder_embed", "decoder_embed"),
        *_torch.norm(f"{prefix}decoder_norm", "decoder_norm"),
        *_torch.dense(f"{prefix}decoder_pred", "decoder_pred"),
    ]


def with_heads(found: Iterable[Rule], heads: int) -> list[Rule]:
    """Return rules for a decoder, whose number of heads is not that of the encoder."""

    def fixed(transform: Transform) -> Transform:
        return Transform(lambda arrays, _: transform.read(arrays, heads), transform.write)

    return [Rule(item.stored, item.variables, fixed(item.transform)) for item in found]


def num_heads(width: int, stated: Any, hints: Hints, path: str) -> int | None:
    """Return the number of heads of a decoder, None if it is not known."""
    heads = stated if stated is not None else hints.wanted.get("decoder_num_heads")
    if heads is None:
        return _HEADS if width % _HEADS == 0 else None
    if type(heads) is not int or heads < 1 or width % heads:
        raise CheckpointError(
            f"{path}: decoder_num_heads must divide the decoder's width of {width}. Received: {str(heads)[:20]}."
        )
    return heads


def arguments(shapes: Mapping[str, Shape], heads: int | None, path: str) -> dict[str, Any]:
    """Return the arguments of `MaskedAutoencoder` that a decoder's variables show."""
    numbers = {int(match[1]) for name in shapes if (match := re.match(r"decoder_block_(\d{1,6})/", name))}
    if numbers != set(range(len(numbers))) or len(numbers) > architecture.MAX_BLOCKS:
        raise CheckpointError(f"{path} is incomplete: blocks {sorted(numbers)[:20]} of its decoder do not follow on.")
    mlp = shapes.get("decoder_block_0/MlpBlock_0/Dense_0/kernel", (0, 0))
    return {
        "decoder_hidden_size": shapes["decoder_embed/kernel"][-1],
        "decoder_num_layers": len(numbers),
        "decoder_num_heads": heads,
        "decoder_mlp_dim": mlp[-1] or None,
    }


def settle(checkpoint: Checkpoint) -> None:
    """Say that the encoder of a checkpoint suits models of any pooling."""
    checkpoint.arguments["pooling"] = "token"
    checkpoint.alternatives |= ALTERNATIVES
