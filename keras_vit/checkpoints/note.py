"""Note that `save_checkpoint` leaves in a file: what its format cannot say, and what its tensors must agree with."""

from collections.abc import Callable, Mapping
from typing import Any

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Checkpoint
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.models.vit_config import POOLINGS, POSITION_EMBEDDINGS

VERSION = 1

# Arguments that tensors do not show, or not fully, with the values that a note may have.
_NOTED: Mapping[str, Callable[[Any], bool]] = {
    "pooling": lambda value: value in POOLINGS,
    "position_embedding": lambda value: value in POSITION_EMBEDDINGS,
    "activation": lambda value: isinstance(value, str),
    "layer_norm_epsilon": lambda value: isinstance(value, float) and 0.0 <= value < 1.0,
    "resnet_numerics": lambda value: value in ("reference", "timm"),
    "distillation_token": lambda value: isinstance(value, bool) or value == "unused",
    "pool_padding": lambda value: value in ("infinity", "zeros", "edge"),
    "pool_prefix_tokens": lambda value: isinstance(value, bool),
}
# Arguments that tensors show.
_SHOWN = (
    "patch_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "mlp_dim",
    "resnet_blocks",
    "class_token",
    "num_registers",
    "qkv_bias",
    "norm_after_pooling",
    "patch_norm",
    "head_dim",
    "output_projection",
    "channels",
    "include_top",
    "representation_size",
    "block_sizes",
    "width_factor",
)
# What tensors show of other arguments.
_PARTLY_SHOWN: Mapping[str, Callable[[Any], bool]] = {
    "pooling": lambda value: value == "map",
    "position_embedding": lambda value: value == "learned",
    "layer_scale": lambda value: value is not None,
    "distillation_token": bool,
}


def of_model(config: Mapping[str, Any], document: dict[str, Any] | None) -> dict[str, Any]:
    """Return the note of a model.

    Args:
        config: The model's arguments.
        document: `config.json` as it is written beside the tensors, None for formats without one.
    """
    names = dict.fromkeys((*architecture.STRUCTURE, *_SHOWN, "classes"))
    if "decoder_hidden_size" in config:  # of a masked autoencoder, whose encoder suits any pooling
        names = dict.fromkeys(name for name in names if name not in ("pooling", "norm_after_pooling"))
    note: dict[str, Any] = {"version": VERSION, "arguments": {name: config[name] for name in names if name in config}}
    if config.get("image_size") is not None:
        note["image_size"] = config["image_size"]
    if "patch_size" in config:
        note["grid"] = list(architecture.geometry(config).grid)
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
    arguments = note.get("arguments")
    if not isinstance(arguments, dict):
        raise CheckpointError(f"{source.path}: its note has no 'arguments'. Damaged?")
    for name, is_valid in _NOTED.items():
        if name in arguments and not is_valid(arguments[name]):
            raise CheckpointError(
                f"{source.path}: its note has an invalid {name}={str(arguments[name])[:60]}. Damaged?"
            )
    for name in ("image_size", "grid"):
        if name in note and architecture.pair(note[name]) is None:
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
    names = [name for name in _SHOWN if name not in architecture.OF_BLOCKS or found.get("num_layers")]
    stated = {name: noted.get(name) for name in names}
    if found.get("include_top"):
        stated["classes"] = noted.get("classes")
    where = f"{checkpoint.path}: its note"
    architecture.check_stated(stated, found, where)
    for name, shown in _PARTLY_SHOWN.items():
        if name in noted and name in found:
            architecture.check_stated({name: shown(noted[name])}, {name: shown(found[name])}, where)
    known = {
        name: value for name, value in noted.items() if name in _NOTED and (name in found or name != "pool_padding")
    }
    found.update(known)
    checkpoint.assumed = {k: v for k, v in checkpoint.assumed.items() if k not in known}
    checkpoint.doubtful = {k: v for k, v in checkpoint.doubtful.items() if k not in known}
    checkpoint.alternatives = {k: v for k, v in checkpoint.alternatives.items() if k not in known}
