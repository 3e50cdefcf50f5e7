"""Grid of a file's position table, and which tokens have entries in it.

The table is a list: 25 entries are a class token and 4 x 6 patches, or 5 x 5 patches. The caller decides, then the
file, then the model if its table is as long, and at last a square is assumed.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from absl import logging

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.layout import Checkpoint
from keras_vit.checkpoints.source import TensorSource

Grid = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Hints:
    """What the caller knows of a file.

    Attributes:
        wanted: Arguments of the model that the weights are for.
        grid: (height, width) of the file's position table, in patches.
        prefix: Where a Flax file's tree of parameters begins; None for the usual places.
    """

    wanted: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    grid: Grid | None = None
    prefix: str | None = None

    def model_grid(self, arguments: Mapping[str, Any]) -> Grid | None:
        """Return the grid of the wanted model, if its image size is known."""
        return architecture.grid_of({**arguments, **self.wanted}) if "image_size" in self.wanted else None


def stated_grids(source: TensorSource, arguments: Mapping[str, Any], hints: Hints) -> list[Grid]:
    """Return the grids that the caller and the file state, the most reliable first.

    Args:
        source: The open file.
        arguments: Arguments inferred from it; `patch_size` and `resnet_blocks` are needed, `image_size` is used.
        hints: What the caller knows.
    """
    note = source.metadata
    sizes = (arguments.get("image_size"), note.get("image_size"), note.get("image"))
    grids = [hints.grid, architecture.pair(note.get("grid"))]
    grids += [architecture.grid_of({**arguments, "image_size": size}) for size in sizes if architecture.pair(size)]
    return [grid for grid in grids if grid is not None]


def has_slots(count: int, tokens: int, grids: list[Grid]) -> bool | None:
    """Return whether `tokens` prefix tokens have entries in a table of `count`, or None if no grid tells.

    Args:
        count: Entries of the table.
        tokens: Number of prefix tokens.
        grids: Grids to try in this order.
    """
    for patches in map(math.prod, grids):
        if count in (patches, patches + tokens):
            return count == patches + tokens
    return None


def is_square(count: int) -> bool:
    """Return whether a count is that of a square grid."""
    return count > 0 and math.isqrt(count) ** 2 == count


def settle(checkpoint: Checkpoint, hints: Hints) -> None:
    """Set the grid of the position table and with it the image size.

    Raises:
        CheckpointError: If what is stated does not fit the table, or nothing tells the grid.
    """
    if checkpoint.kind == "bit":
        return
    source, arguments = checkpoint.source, checkpoint.arguments
    table = checkpoint.shapes.get(architecture.TABLE)
    stated = stated_grids(source, arguments, hints)
    if table is None:
        _size_without_table(checkpoint)
        return
    count = table[1] - architecture.num_slots(arguments)
    if checkpoint.layout.family == "keras" and source.config is not None:
        checkpoint.grid = architecture.grid_of(arguments)  # its image_size may be None, for any size
        if math.prod(checkpoint.grid) != count:
            raise CheckpointError(f"{source.path}: image_size and position table disagree. Damaged?")
        return
    for name, grid in (
        ("grid", hints.grid),
        ("the grid noted in the file", architecture.pair(source.metadata.get("grid"))),
    ):
        if grid is not None and math.prod(grid) != count:
            raise CheckpointError(
                f"{source.path}: {name}={grid} has {math.prod(grid)} patches, but the position table has {count}."
            )
    own = arguments.get("image_size")
    if own is not None and architecture.pair(own) is None:
        raise CheckpointError(
            f"{source.path}: image_size must be an integer or (height, width). Received: {str(own)[:60]}."
        )
    if own is not None and math.prod(architecture.grid_of(arguments)) != count:
        raise CheckpointError(
            f"{source.path}: its configuration says image_size={own}, a grid of {architecture.grid_of(arguments)}, "
            f"but the position table has {count} patches: they disagree. Damaged?"
        )
    checkpoint.grid = _choose(count, stated, hints.model_grid(arguments), checkpoint)
    if own is not None and architecture.grid_of(arguments) == checkpoint.grid:
        return
    rows, columns = architecture.stride(arguments)
    noted = [architecture.pair(source.metadata.get(name)) for name in ("image_size", "image")]
    fitting = [
        size for size in noted if size and architecture.grid_of({**arguments, "image_size": size}) == checkpoint.grid
    ]
    size = fitting[0] if fitting else (checkpoint.grid[0] * rows, checkpoint.grid[1] * columns)
    arguments["image_size"] = architecture.plain_pair(size)


def _size_without_table(checkpoint: Checkpoint) -> None:
    """Take the image size that the file states, where no table depends on it."""
    arguments, note = checkpoint.arguments, checkpoint.source.metadata
    stated = [architecture.pair(note.get(name)) for name in ("image_size", "image")]
    stated = [size for size in stated if size is not None]
    if "image_size" not in arguments:
        arguments["image_size"] = architecture.plain_pair(stated[0]) if stated else None
    if arguments["image_size"] is None and not stated:
        checkpoint.assumed["image_size"] = "without a position table nothing fixes it"


def _choose(count: int, stated: list[Grid], model: Grid | None, checkpoint: Checkpoint) -> Grid:
    for grid in [*stated, *([model] if model else [])]:
        if math.prod(grid) == count:
            return grid
    path = checkpoint.source.path
    if not is_square(count):
        raise CheckpointError(
            f"{path}: its {count} position embeddings form no square grid, and the file does not say which one they "
            "form. Pass grid=(height, width), in patches."
        )
    grid = (math.isqrt(count),) * 2
    logging.info("%s does not say the grid of its %d position embeddings: %dx%d is assumed.", path, count, *grid)
    return grid
