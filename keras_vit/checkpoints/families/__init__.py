"""The projects whose checkpoints are read and written, one module each.

A new project is a module with a `Family` and an entry in `FAMILIES`.
"""

from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.checkpoint import KINDS, Checkpoint, Hints
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


def tensors_of_format(format: str) -> str:
    """Return the format of the tensors, `"npz"` or `"safetensors"`, in one of `written_formats()`."""
    return next(family.writing.tensors for family in FAMILIES if family.name == format and family.writing is not None)


def recognize(source: TensorSource, hints: Hints) -> tuple[Checkpoint, Family]:
    """Return the checkpoint that an open file holds, and its family."""
    for family in FAMILIES:
        checkpoint = family.recognize(source, hints)
        if checkpoint is not None:
            return checkpoint, family
    if hints.prefix is not None:
        raise CheckpointError(f"{source.path} has no tree of parameters at prefix={hints.prefix!r}.")
    names = sorted(source.tensors)
    raise CheckpointError(
        f"{source.path} holds no Vision Transformer or BiT of a known family (Google, big_vision, Hugging Face, timm, "
        f"vit-pytorch, MAE, Keras). Its {len(names)} tensors: {', '.join(names[:8])[:600]}"
        f"{' ...' if len(names) > 8 else ''}"
    )


def writing_family(format: str, kind: str, config: Mapping[str, Any]) -> tuple[Family, Writing]:
    """Return the family that writes a model in a format, and how it does."""
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
