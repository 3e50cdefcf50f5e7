"""The projects whose checkpoints are read and written, one module each.

A new project is a module with a `Family` and an entry in `FAMILIES`; messages name the families that are in it.
"""

from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.checkpoint import KINDS
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import (
    bit,
    google,
    huggingface_writing,
    keras,
    mae,
    meta,
    timm_writing,
    vit_pytorch,
)
from keras_vit.checkpoints.families.family import Family, Writing

# They are asked in this order: Keras' variables have the names of Google's tensors.
FAMILIES: tuple[Family, ...] = (
    keras.FAMILY,
    *google.FAMILIES,
    *bit.FAMILIES,
    *mae.FAMILIES,
    *huggingface_writing.FAMILIES,
    meta.FAMILY,
    *timm_writing.FAMILIES,
    vit_pytorch.FAMILY,
)


def written_formats() -> dict[str, str]:
    """Return the formats that models can be written in, and `"npz"` or `"safetensors"` for each."""
    return {family.name: family.writing.tensors for family in FAMILIES if family.writing is not None}


def writing_family(format: str, kind: str, config: Mapping[str, Any]) -> tuple[Family, Writing]:
    """Return the family that writes a model in a format, and how it does."""
    options = KINDS[kind].config.options()
    reasons: dict[str, list[str]] = {}
    for family in FAMILIES:
        if family.writing is None or family.kind != kind:
            continue
        found = family.writing.reasons(config, options)
        if not found and family.name == format:
            return family, family.writing
        # A project has several types of models: those of the nearest type count.
        reasons[family.name] = min(reasons.get(family.name, found), found, key=len)
    found = reasons.get(format, [f"it holds no {KINDS[kind].noun}s"])
    others = [name for name, listed in reasons.items() if not listed]
    raise CheckpointError(
        f"The {format} format cannot hold this model: {'; '.join(found)}. "
        f"{'Formats that can: ' + ', '.join(others) + '; or' if others else 'Save it with'} model.save('model.keras')."
    )
