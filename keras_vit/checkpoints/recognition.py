"""Recognize a checkpoint: find its project and layout, and infer the arguments of its model."""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from absl import logging

from keras_vit import zoo
from keras_vit.checkpoints import architecture, families, formats
from keras_vit.checkpoints.checkpoint import KINDS, Checkpoint, Hints, Kind, noted_preprocessing
from keras_vit.checkpoints.families.family import Family
from keras_vit.checkpoints.formats.tensors import CheckpointError, TensorSource
from keras_vit.checkpoints.position_grid import grid_of, settle_grid, stated_size
from keras_vit.models import ViTConfig
from keras_vit.models.config import plain
from keras_vit.models.normalization import Normalization
from keras_vit.util import checks
from keras_vit.util.progress import Progress

NOTE_VERSION = 1  # of the metadata that `save_checkpoint` writes
_MAX_TABLE = 2**28  # entries of a position table
_MAX_STATED_TABLE = 2**24  # the same, if only the file requests it
_CHUNK = re.compile(r"((?:^|\.)(?:blocks|layer)\.)\d+\.(?=\d+\.)")
Path = str | os.PathLike[str]


@contextlib.contextmanager
def identify(path: Path | zoo.WeightsName, hints: Hints, config: Path | dict | None = None) -> Iterator[Checkpoint]:
    """Open a checkpoint, recognize its project and architecture from headers, and close the file on exit."""
    named = path if isinstance(path, zoo.WeightsName) else zoo.parse_weights_name(checks.path("path", path))
    local = named.local()
    with Progress(f"Reading {local}"), contextlib.closing(formats.open_source(local, config)) as source:
        _check_note(source)
        _leave_chunks_out(source)
        checkpoint, family = _recognize(source, hints)
        checkpoint.resize_method = checkpoint.resize_method or family.resize_method
        _apply_note(checkpoint)
        if family.name != "keras":  # Keras models may use options that cannot be inferred from weights
            for name, default in KINDS[checkpoint.kind].config.options().items():
                checkpoint.arguments.setdefault(name, default)
            if checkpoint.kind != "bit":
                checkpoint.arguments.setdefault("position_resizing", checkpoint.resize_method)
        settle_grid(checkpoint, hints)
        _take_preprocessing(checkpoint, family.input_normalization)
        if named.entry is not None:
            _apply_entry(checkpoint, named.entry)
        yield checkpoint


def read_headers(path: Path) -> Checkpoint:
    """Return what the headers of a checkpoint state about its model. The checkpoint is closed."""
    with identify(path, Hints()) as checkpoint:
        return checkpoint


def _apply_entry(checkpoint: Checkpoint, entry: zoo.PublishedWeights) -> None:
    """Add facts about published weights that their file does not contain."""
    checkpoint.entry = entry
    if entry.classes is not None:
        checkpoint.name_classes([label for _, label in zoo.imagenet_classes(entry.classes)])
    if entry.pool_padding is not None:
        checkpoint.arguments["pool_padding"] = entry.pool_padding
        checkpoint.alternatives.pop("pool_padding", None)
        checkpoint.doubtful.pop("pool_padding", None)


def _leave_chunks_out(source: TensorSource) -> None:
    """Remove the chunk from block names. DINOv2's training in chunks writes `blocks.1.7.` for block 7 in chunk 1."""
    stored = {_CHUNK.sub(r"\1", name): name for name in source.tensors}
    if len(stored) == len(source.tensors):  # otherwise the second number is not the block's index
        tensors, read = source.tensors, source.read
        source.tensors = {name: tensors[old] for name, old in stored.items()}
        source.read = lambda name: read(stored[name])  # type: ignore[method-assign]


def _recognize(source: TensorSource, hints: Hints) -> tuple[Checkpoint, Family]:
    """Return the checkpoint in an open file, and the first family that recognizes its names."""
    for family in families.FAMILIES:
        checkpoint = family.recognize(source, hints)
        if checkpoint is not None:
            return checkpoint, family
    if hints.prefix is not None:
        raise CheckpointError(f"{source.path} has no model of a known family at prefix={hints.prefix!r}.")
    known, names = dict.fromkeys(family.name for family in families.FAMILIES), sorted(source.tensors)
    raise CheckpointError(
        f"{source.path} has no Vision Transformer or BiT of a known family ({', '.join(known)}). Its {len(names)} "
        f"tensors: {', '.join(names[:8])[:600]}{' ...' if len(names) > 8 else ''}"
    )


def hints_of(wanted: dict[str, Any], grid: Sequence[int] | None, prefix: str | None) -> Hints:
    """Return the facts about a file that the caller knows; see `Hints`."""
    return Hints(wanted, None if grid is None else checks.size_pair("grid", grid), prefix)


def without_decoder(checkpoint: Checkpoint) -> Kind:
    """Return the kind of model to build if no decoder is requested."""
    return KINDS["vit" if checkpoint.kind == "mae" else checkpoint.kind]


def _check_note(source: TensorSource) -> None:
    """Refuse malformed metadata of `save_checkpoint`, and metadata of another version."""
    note = source.metadata
    if not note:
        return
    version = note.get("version")
    if version != NOTE_VERSION:
        raise CheckpointError(
            f"{source.path}: its metadata has version {str(version)[:20]}, not {NOTE_VERSION}. Update this package."
        )
    if not isinstance(note.get("arguments"), dict):
        raise CheckpointError(f"{source.path}: its metadata has no 'arguments'. It may be damaged.")
    for name in ("image_size", "grid"):
        if name in note and stated_size(note[name]) is None:
            raise CheckpointError(f"{source.path}: its metadata has an invalid {name}={str(note[name])[:60]}.")


def _apply_note(checkpoint: Checkpoint) -> None:
    """Add the arguments in the metadata of `save_checkpoint`, and refuse tensors that contradict the metadata."""
    noted = checkpoint.source.metadata.get("arguments")
    if noted is None:
        return
    found = checkpoint.arguments
    stated = {name: noted[name] for name in (*architecture.SHOWN, *architecture.PARTLY_SHOWN) if name in noted}
    if found.get("include_top"):
        stated["classes"] = noted.get("classes")
    where = f"{checkpoint.path}: its metadata"
    architecture.check_stated(architecture.shown(stated), architecture.shown(found), where)
    config_class = KINDS[checkpoint.kind].config
    known = {
        name: noted[name]
        for name in config_class.options()
        if name in noted and not (name in architecture.SHOWN and name in found)
    }
    try:
        config_class(**known)
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{where} has invalid arguments: {str(error)[:500]}") from error
    found.update(known)
    checkpoint.name_classes(checkpoint.source.metadata.get("class_names"))
    checkpoint.assumed = {k: v for k, v in checkpoint.assumed.items() if k not in known}
    checkpoint.doubtful = {k: v for k, v in checkpoint.doubtful.items() if k not in known}
    checkpoint.alternatives = {k: v for k, v in checkpoint.alternatives.items() if k not in known}


def _take_preprocessing(checkpoint: Checkpoint, of_project: Normalization | None) -> None:
    """Set the normalization and resizing: those in the metadata, or else in the configuration, or of the project."""
    stated, note = checkpoint.input_normalization, checkpoint.source.metadata
    noted, resizing = noted_preprocessing(note, f"{checkpoint.path}: its metadata")
    checkpoint.resizing = resizing or checkpoint.resizing
    if noted is None:
        is_known = stated is not None or "input_normalization" in note
        checkpoint.input_normalization = stated if is_known else of_project
        return
    if stated not in (None, noted):
        text = "%s: using its own mean and standard deviation, %s, not the configuration's. Set input_normalization."
        logging.warning(text, checkpoint.path, noted)
    checkpoint.input_normalization = noted


def arguments_of(checkpoint: Checkpoint, overrides: dict[str, Any], kind: Kind) -> dict[str, Any]:
    """Return the constructor's arguments, after checking that the file is large enough for such a model."""
    found, path = checkpoint.arguments, checkpoint.path
    architecture.check_complete(checkpoint.shapes, found, path)
    known = {name: value for name, value in found.items() if name in kind.config.names()}
    arguments = {name: list(value) if isinstance(value, tuple) else value for name, value in known.items()} | overrides
    if checkpoint.kind != "bit":
        if arguments.get("image_size") is None and checkpoint.grid is not None:
            arguments.setdefault("position_grid", plain(checkpoint.grid))
        missing = [name for name in ("num_heads", "mlp_dim") if arguments.get(name) is None]
        if missing:
            raise CheckpointError(f"{path} has no encoder blocks. Pass the arguments {', '.join(missing)}.")
        _check_size(arguments, path, _MAX_TABLE if "image_size" in overrides else _MAX_STATED_TABLE)
    if overrides.get("head") is not None:
        return ViTConfig.of_encoder(arguments) | overrides
    if not found.get("include_top", True) and "classes" in overrides:
        arguments["include_top"] = overrides.get("include_top", True)
    if not arguments.get("include_top", True):
        arguments.pop("classes", None)
    return arguments


def _check_size(arguments: dict[str, Any], path: str, limit: int) -> None:
    """Refuse implausible image sizes before position tables of that size are allocated."""
    grid = grid_of(arguments)
    if grid is not None and grid[0] * grid[1] * arguments["hidden_size"] > limit:
        size = arguments.get("image_size")
        raise CheckpointError(f"{path}: images of {size} have {grid[0]} x {grid[1]} patches. Pass another image_size.")
