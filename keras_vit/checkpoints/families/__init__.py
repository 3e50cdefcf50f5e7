"""The projects whose checkpoints are read and written, one module each.

A new project is a module with a `Family` and an entry in `FAMILIES`.
"""

from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.checkpoint import Checkpoint
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import (
    big_vision,
    bit,
    huggingface,
    huggingface_mae,
    keras,
    mae,
    timm,
    vision_transformer,
    vit_pytorch,
)
from keras_vit.checkpoints.families.family import Family, Writing
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.grid import Hints
from keras_vit.checkpoints.kinds import KINDS

# They are asked in this order: Keras' variables have the names of Google's tensors.
FAMILIES: tuple[Family, ...] = (
    keras.FAMILY,
    vision_transformer.FAMILY,
    big_vision.FAMILY,
    *bit.FAMILIES,
    huggingface_mae.FAMILY,
    huggingface.FAMILY,
    mae.FAMILY,
    timm.FAMILY,
    vit_pytorch.FAMILY,
)


def written_formats() -> tuple[str, ...]:
    """Return the names of the formats that models can be written in."""
    return tuple(dict.fromkeys(family.name for family in FAMILIES if family.writing is not None))


def recognize(source: TensorSource, hints: Hints) -> Checkpoint:
    """Return the checkpoint that an open file holds.

    Args:
        source: The open file.
        hints: Facts that the caller knows.

    Raises:
        CheckpointError: If no family knows it.
    """
    for family in FAMILIES:
        checkpoint = family.recognize(source, hints)
        if checkpoint is not None:
            return checkpoint
    if hints.prefix is not None:
        raise CheckpointError(f"{source.path} has no tree of parameters at prefix={hints.prefix!r}.")
    names = sorted(source.tensors)
    raise CheckpointError(
        f"{source.path} holds no Vision Transformer or BiT of a known family (Google, big_vision, Hugging Face, timm, "
        f"vit-pytorch, MAE, Keras). Its {len(names)} tensors: {', '.join(names[:8])[:600]}"
        f"{' ...' if len(names) > 8 else ''}"
    )


def family_of(checkpoint: Checkpoint) -> Family:
    """Return the family that recognized a checkpoint."""
    name, kind = checkpoint.layout.family, checkpoint.kind
    return next(f for f in FAMILIES if f.name == name and (f.kind == kind or f is keras.FAMILY))


def writing_family(format: str, kind: str, config: Mapping[str, Any]) -> tuple[Family, Writing]:
    """Return the family that writes a model in a format, and how it does.

    Args:
        format: One of `written_formats()`.
        kind: `"vit"`, `"bit"` or `"mae"`.
        config: The model's arguments.

    Raises:
        CheckpointError: If the format's readers could not rebuild the model with equal outputs. The message lists
            the reasons, and the formats that can hold the model.
    """
    families = {f.name: (f, f.writing) for f in FAMILIES if f.writing is not None and f.kind == kind}
    options = KINDS[kind].config.options()
    reasons = {name: writing.reasons(config, options) for name, (_, writing) in families.items()}
    if format in reasons and not reasons[format]:
        return families[format]
    found = reasons.get(format, [f"it holds no {KINDS[kind].noun}s"])
    others = [name for name, listed in reasons.items() if not listed]
    raise CheckpointError(
        f"The {format} format cannot hold this model: {'; '.join(found)}. "
        f"{'Formats that can: ' + ', '.join(others) + '; or' if others else 'Save it with'} model.save('model.keras')."
    )
