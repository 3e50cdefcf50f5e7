"""Grid of a file's position table, and which tokens have entries in it.

The table is a list: 25 entries are a class token and 4 x 6 patches, or 5 x 5 patches. The caller decides, then the
file, then the model if its table is as long, and at last a square is assumed.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from absl import logging

from keras_vit.checkpoints import architecture, facts
from keras_vit.checkpoints.checkpoint import Checkpoint
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.formats.tensors import TensorSource

Grid = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Hints:
    """Facts about a file that the caller knows.

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
        return facts.grid_of({**arguments, **self.wanted}) if "image_size" in self.wanted else None


def stated_grids(source: TensorSource, arguments: Mapping[str, Any], hints: Hints) -> list[Grid]:
    """Return the grids that the caller and the file state, the most reliable first.

    Args:
        source: The open file.
        arguments: Arguments inferred from it; `patch_size` and `resnet_blocks` are needed, `image_size` is used.
        hints: Facts that the caller knows.
    """
    note = source.metadata
    sizes = (arguments.get("image_size"), note.get("image_size"), note.get("image"))
    grids = [hints.grid, facts.pair(note.get("grid"))]
    grids += [facts.grid_of({**arguments, "image_size": size}) for size in sizes if facts.pair(size)]
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
    source, arguments, path = checkpoint.source, checkpoint.arguments, checkpoint.path
    if checkpoint.kind == "bit":
        return
    noted = [size for name in ("image_size", "image") if (size := facts.pair(source.metadata.get(name)))]
    own = arguments.get("image_size")
    if own is not None and facts.pair(own) is None:
        raise CheckpointError(f"{path}: image_size must be an integer or (height, width). Received: {str(own)[:60]}.")
    table = checkpoint.shapes.get(architecture.TABLE)
    if table is None:
        arguments.setdefault("image_size", facts.plain_pair(noted[0]) if noted else None)
        if arguments["image_size"] is None:
            checkpoint.assumed["image_size"] = "without a position table nothing fixes it"
        return
    count = table[1] - facts.num_slots(arguments)
    own_grid = facts.grid_of(arguments) if "image_size" in arguments else None
    stated = {
        "grid": hints.grid,
        "the grid in its note": facts.pair(source.metadata.get("grid")),
        f"image_size={str(own)[:60]} of its configuration": own_grid or ((0, 0) if own is not None else None),
    }
    for name, grid in stated.items():
        if grid is not None and math.prod(grid) != count:
            raise CheckpointError(
                f"{path}: {name} and the position table disagree: the grid {grid} has {math.prod(grid)} patches, the "
                f"table {count}. Damaged?"
            )
    if checkpoint.layout.family == "keras" and own_grid is not None:
        checkpoint.grid = own_grid  # image_size may be None, for images of any size
        return
    checkpoint.grid = _choose(count, stated_grids(source, arguments, hints), hints.model_grid(arguments), path)
    if own_grid == checkpoint.grid:
        return
    fitting = [size for size in noted if facts.grid_of({**arguments, "image_size": size}) == checkpoint.grid]
    stride = facts.geometry(arguments).stride
    size = (checkpoint.grid[0] * stride[0], checkpoint.grid[1] * stride[1])
    arguments["image_size"] = facts.plain_pair(fitting[0] if fitting else size)


def _choose(count: int, stated: list[Grid], model: Grid | None, path: str) -> Grid:
    for grid in [*stated, *([model] if model else [])]:
        if math.prod(grid) == count:
            return grid
    if not is_square(count):
        raise CheckpointError(
            f"{path}: its {count} position embeddings form no square grid, and the file does not say which one they "
            "form. Pass grid=(height, width), in patches."
        )
    grid = (math.isqrt(count),) * 2
    logging.info("%s does not say the grid of its %d position embeddings: %dx%d is assumed.", path, count, *grid)
    return grid
