"""Recognition of a file: its project, layout and architecture, and the arguments of the model that it holds."""

import os
from collections.abc import Sequence
from typing import Any

from absl import logging

from keras_vit import _checks
from keras_vit.checkpoints import architecture, facts, families, formats, note
from keras_vit.checkpoints import grid as grids
from keras_vit.checkpoints.checkpoint import Checkpoint
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.kinds import KINDS, Kind

_MAX_TABLE = 2**28  # entries of a position table
_MAX_STATED_TABLE = 2**24  # the same, where a file alone asks for it
Path = str | os.PathLike[str]


def identify(path: Path, hints: grids.Hints, config: Path | dict | None = None) -> Checkpoint:
    """Open a checkpoint and recognize its family, layout and architecture from the headers.

    Args:
        path: A file or directory.
        hints: Facts that the caller knows.
        config: The model's `config.json`, as a path or an object, if it is not beside the tensors.

    Returns:
        The checkpoint, whose source the caller closes.

    Raises:
        CheckpointError: If no family is recognized, or the file is damaged.
    """
    source = formats.open_source(path, config)
    try:
        note.check(source)
        checkpoint = families.recognize(source, hints)
        note.apply(checkpoint)
        if checkpoint.layout.family != "keras":  # whose weights may have options that they do not show
            for name, default in KINDS[checkpoint.kind].config.options().items():
                checkpoint.arguments.setdefault(name, default)
        grids.settle(checkpoint, hints)
    except BaseException:
        source.close()
        raise
    return checkpoint


def hints_of(wanted: dict[str, Any], grid: Sequence[int] | None, prefix: str | None) -> grids.Hints:
    """Return what a caller knows of a file; see `Hints`."""
    return grids.Hints(wanted, None if grid is None else _checks.size_pair("grid", grid), prefix)


def without_decoder(checkpoint: Checkpoint) -> Kind:
    """Return the kind of model that is built where no decoder is asked for."""
    return KINDS["vit" if checkpoint.kind == "mae" else checkpoint.kind]


def arguments_of(checkpoint: Checkpoint, overrides: dict[str, Any], kind: Kind) -> dict[str, Any]:
    """Return the constructor's arguments, after checking that the file holds the weights of such a model.

    Args:
        checkpoint: The file.
        overrides: Arguments that the caller gives instead of the file's.
        kind: Kind of the model that is built.

    Raises:
        CheckpointError: If the file is incomplete, or something is missing that it does not show.
    """
    found, path = checkpoint.arguments, checkpoint.path
    architecture.check_complete(checkpoint.shapes, found, path)
    arguments = {**{name: value for name, value in found.items() if name in kind.config.names()}, **overrides}
    if checkpoint.kind != "bit":
        missing = [name for name in ("num_heads", "mlp_dim") if arguments.get(name) is None]
        if missing:
            raise CheckpointError(f"{path} has no encoder blocks to show {', '.join(missing)}.")
        _check_size(arguments, path, _MAX_TABLE if "image_size" in overrides else _MAX_STATED_TABLE)
    if not found.get("include_top", True) and "classes" in overrides:
        arguments["include_top"] = overrides.get("include_top", True)
    if not arguments.get("include_top", True):
        arguments.pop("classes", None)
    for name, reason in checkpoint.assumed.items():
        if name not in overrides:
            logging.info("%s: %s=%r is assumed: %s.", path, name, arguments.get(name), reason)
    return arguments


def _check_size(arguments: dict[str, Any], path: str, limit: int) -> None:
    """Refuse an image size that no file of weights has, before tables of that size are made."""
    size = arguments.get("image_size")
    if size is not None and facts.pair(size) is None:
        raise CheckpointError(f"{path}: image_size must be an integer or (height, width). Received: {str(size)[:60]}.")
    grid = facts.grid_of(arguments)
    if grid is not None and grid[0] * grid[1] * arguments["hidden_size"] > limit:
        raise CheckpointError(
            f"{path}: images of {size} would have {grid[0]} x {grid[1]} patches. Pass another image_size."
        )
