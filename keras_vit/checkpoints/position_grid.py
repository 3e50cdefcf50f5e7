"""Determine the grid of a position table.

A position table is a list of entries. For example, 25 entries may belong to a class token and 4 x 6 patches, or to 5 x
5 patches.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from keras_vit.checkpoints.checkpoint import Checkpoint, Grid, Hints
from keras_vit.checkpoints.formats.tensors import CheckpointError, TensorSource
from keras_vit.models import vit_config
from keras_vit.models.config import plain

_MAX_SIZE = 2**31  # of an image edge in pixels


def stated_size(value: Any) -> tuple[int, int] | None:
    """Return an integer or a pair from a file as (height, width), or None for any other value."""
    sizes = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
    good = len(sizes) == 2 and all(type(size) is int and 0 < size <= _MAX_SIZE for size in sizes)
    return sizes if good else None


def grid_of(arguments: Mapping[str, Any]) -> Grid | None:
    """Return the grid of a model's position table, or None if the images do not consist of whole patches."""
    names = ("patch_size", "resnet_blocks", "image_size", "position_grid")
    try:
        return vit_config.grid(**{name: arguments[name] for name in names if name in arguments})
    except (TypeError, ValueError, ArithmeticError):
        return None


def is_square(count: int) -> bool:
    """Return whether a square grid can have this number of patches."""
    return count > 0 and math.isqrt(count) ** 2 == count


def stated_grids(source: TensorSource, hints: Hints, arguments: Mapping[str, Any]) -> list[Grid]:
    """Return the grids that the caller and the file specify, the most reliable grid first."""
    note = source.metadata
    sizes = (arguments.get("image_size"), note.get("image_size"))
    grids = [hints.grid, stated_size(note.get("grid"))]
    grids += [grid_of({**arguments, "image_size": size}) for size in sizes if stated_size(size)]
    return [grid for grid in grids if grid is not None]


def model_grid(hints: Hints, arguments: Mapping[str, Any]) -> list[Grid]:
    """Return the grid of the requested model as a list, which is empty if the model's image size is unknown."""
    grid = grid_of({**arguments, **hints.wanted}) if "image_size" in hints.wanted else None
    return [] if grid is None else [grid]


def has_slots(count: int, tokens: int, grids: Sequence[Grid]) -> bool | None:
    """Return whether a table of `count` entries includes the prefix tokens, or None if no grid fits the table."""
    fitting = (count - math.prod(grid) for grid in grids)
    return next((rest == tokens for rest in fitting if rest in (0, tokens)), None)


def settle_grid(checkpoint: Checkpoint, hints: Hints) -> None:
    """Set the grid of the position table and the resulting image size.

    The grid comes from the caller, the file or the requested model, in this order of precedence. Grids with a different
    number of patches are skipped. If no grid remains, a square grid is assumed.
    """
    source, arguments, path = checkpoint.source, checkpoint.arguments, checkpoint.path
    count = checkpoint.num_positions
    if count is None and hints.grid is not None:
        raise CheckpointError(f"{path} has no position table. Received: grid={hints.grid}. Leave it out.")
    if checkpoint.kind == "bit":
        return
    noted = stated_size(source.metadata.get("image_size"))
    own = arguments.get("image_size")
    if own is not None and stated_size(own) is None:
        raise CheckpointError(f"{path}: image_size must be an integer or (height, width). Received: {str(own)[:60]}.")
    if count is None:
        arguments.setdefault("image_size", plain(noted) if noted else None)
        if arguments["image_size"] is None:
            checkpoint.assumed["image_size"] = "there is no position table to determine it"
        return
    own_grid = grid_of(arguments) if "image_size" in arguments else None
    stated = {
        "grid": hints.grid,
        "the grid in its metadata": stated_size(source.metadata.get("grid")),
        f"image_size={str(own)[:60]} of its configuration": own_grid or ((0, 0) if own is not None else None),
    }
    for name, grid in stated.items():
        if grid is not None and math.prod(grid) != count:
            raise CheckpointError(
                f"{path}: {name} and the position table disagree: the grid {grid} has {math.prod(grid)} patches, but "
                f"the table has {count}. The file may be damaged."
            )
    if checkpoint.layout.family == "keras" and own_grid is not None:
        if hints.grid not in (None, own_grid):
            raise CheckpointError(f"{path}: its table has the grid {own_grid}. Leave out grid={hints.grid}.")
        checkpoint.grid = own_grid  # image_size may be None, for images of any size
        return
    known = [*stated_grids(source, hints, arguments), *model_grid(hints, arguments)]
    checkpoint.grid = next((grid for grid in known if math.prod(grid) == count), None) or _square(count, path)
    if own_grid == checkpoint.grid:
        return
    stride = vit_config.stride(arguments["patch_size"], arguments.get("resnet_blocks"))
    size = (checkpoint.grid[0] * stride[0], checkpoint.grid[1] * stride[1])
    fits = noted is not None and grid_of({**arguments, "image_size": noted}) == checkpoint.grid
    arguments["image_size"] = plain(noted if fits and noted else size)


def _square(count: int, path: str) -> Grid:
    if not is_square(count):
        raise CheckpointError(
            f"{path}: its {count} position embeddings do not form a square grid, and the file does not specify a grid. "
            "Pass grid=(height, width), in patches."
        )
    grid = (math.isqrt(count),) * 2
    logging.info("%s does not specify the grid of its %d position embeddings: %dx%d is assumed.", path, count, *grid)
    return grid
