"""Note that `save_checkpoint` leaves in a file: what its format cannot say, and what its tensors must agree with."""

from collections.abc import Callable, Mapping
from typing import Any

from keras_vit.checkpoints import architecture, facts
from keras_vit.checkpoints.checkpoint import Checkpoint
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.kinds import KINDS
from keras_vit.models import MAEConfig, ViTConfig
from keras_vit.models.config import Config

VERSION = 1

# What tensors show of other arguments.
_PARTLY_SHOWN: Mapping[str, Callable[[Any], bool]] = {
    "pooling": lambda value: value == "map",
    "position_embedding": lambda value: value == "learned",
    "layer_scale": lambda value: value is not None,
    "distillation_token": bool,
}


def of_model(config: Config, document: dict[str, Any] | None) -> dict[str, Any]:
    """Return the note of a model.

    Args:
        config: The model's arguments.
        document: `config.json` as it is written beside the tensors, None for formats without one.
    """
    left_out = set(config.FREE)
    if isinstance(config, MAEConfig):  # its encoder suits any head
        left_out |= set(config.OF_HEAD)
    arguments = {name: value for name, value in config.to_dict().items() if name not in left_out}
    note: dict[str, Any] = {"version": VERSION, "arguments": arguments}
    if config.image_size is not None:
        note["image_size"] = config.to_dict()["image_size"]
    if isinstance(config, ViTConfig):
        note["grid"] = list(config.grid)
    if document is not None:
        note["config"] = document
    return note


def check(source: TensorSource) -> None:
    """Refuse a note that this version does not understand.

    Raises:
        CheckpointError: If it is of another version, or malformed.
    """
    note = source.metadata
    if not note or set(note) <= {"image"}:
        return
    if note.get("version") != VERSION:
        raise CheckpointError(
            f"{source.path}: its note has version {str(note.get('version'))[:20]}; this release reads {VERSION}. "
            "Update keras-vision-transformers."
        )
    if not isinstance(note.get("arguments"), dict):
        raise CheckpointError(f"{source.path}: its note has no 'arguments'. Damaged?")
    for name in ("image_size", "grid"):
        if name in note and facts.pair(note[name]) is None:
            raise CheckpointError(f"{source.path}: its note has an invalid {name}={str(note[name])[:60]}. Damaged?")


def apply(checkpoint: Checkpoint) -> None:
    """Take from the note what tensors do not show, and refuse tensors that it contradicts.

    Raises:
        CheckpointError: If file and note disagree.
    """
    noted = checkpoint.source.metadata.get("arguments")
    if noted is None:
        return
    found = checkpoint.arguments
    stated = {name: noted.get(name) for name in architecture.SHOWN}
    if found.get("include_top"):
        stated["classes"] = noted.get("classes")
    where = f"{checkpoint.path}: its note"
    facts.check_stated(stated, found, where)
    for name, shown in _PARTLY_SHOWN.items():
        if name in noted and name in found:
            facts.check_stated({name: shown(noted[name])}, {name: shown(found[name])}, where)
    config_class = KINDS[checkpoint.kind].config
    known = {
        name: noted[name]
        for name in config_class.options()
        if name in noted and not (name in architecture.SHOWN and name in found)
    }
    try:
        config_class(**known)
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{where} has invalid arguments. Damaged? {str(error)[:500]}") from error
    found.update(known)
    checkpoint.assumed = {k: v for k, v in checkpoint.assumed.items() if k not in known}
    checkpoint.doubtful = {k: v for k, v in checkpoint.doubtful.items() if k not in known}
    checkpoint.alternatives = {k: v for k, v in checkpoint.alternatives.items() if k not in known}
