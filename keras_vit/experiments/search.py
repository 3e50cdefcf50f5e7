"""The points of a sweep: a recipe per combination of values."""

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keras_vit import recipe as recipes

Grid = Mapping[str, Iterable[Any]]
# Commas within quotes and brackets do not separate values; round brackets may nest once.
_VALUES = re.compile(r"""(?:'[^']*'|"[^"]*"|\((?:[^()]|\([^()]*\))*\)|\[[^]]*\]|\{[^}]*\}|[^,])+""")
_LONGEST_VALUE = 32  # characters of a value in the name of a run


@dataclasses.dataclass(frozen=True)
class Point:
    """A run of a sweep: the name of its directory, the swept fields with their values, and the recipe with these."""

    name: str
    settings: dict[str, Any]
    recipe: recipes.Recipe


def expand(recipe: recipes.Recipe, grid: Grid | Sequence[Grid]) -> list[Point]:
    """Return all combinations of the values of a grid.

    Args:
        recipe: Recipe for all other fields.
        grid: Values by dotted field, or several such grids, whose points are joined.

    Raises:
        ValueError: If there is no such field, no value, or a combination is not a valid recipe. Names the field or run.

    Example:
    >>> points = expand(recipes.Recipe(), {"optim.learning_rate": [1e-3, 3e-4], "seed": range(3)})
    >>> len(points), points[0].name
    (6, 'learning_rate=0.001,seed=0')
    """
    points: dict[str, Point] = {}
    for part in [grid] if isinstance(grid, Mapping) else grid:
        values = {field: list(choices) for field, choices in part.items()}
        empty = [field for field, choices in values.items() if not choices]
        if empty:
            raise ValueError(f"grid must have at least one value per field. Received none for {', '.join(empty)}.")
        for combination in itertools.product(*values.values()):
            settings = dict(zip(values, combination, strict=True))
            name = _name(settings)
            try:
                changed = recipes.check(recipes.replace(recipe, settings))
            except ValueError as error:
                raise ValueError(f"The run {name} has no valid recipe: {error}") from error
            points.setdefault(name, Point(name, {field: recipes.get(changed, field) for field in settings}, changed))
    return list(points.values())


def parse_grid(texts: Iterable[str], recipe: recipes.Recipe) -> dict[str, list[Any]]:
    """Return a grid from the command line.

    Args:
        texts: `FIELD=VALUE,VALUE...` each. Commas within brackets or quotes do not separate values.
        recipe: Recipe whose fields decide about the types of the values.

    Raises:
        ValueError: If there is no such field, or a value is of the wrong type.

    Example:
    >>> parse_grid(["optim.learning_rate=1e-3,3e-4", "model.arguments.pooling=gap,token"], recipes.Recipe())
    {'optim.learning_rate': [0.001, 0.0003], 'model.arguments.pooling': ['gap', 'token']}
    """
    grid = {}
    for text in texts:
        field, equals, values = text.partition("=")
        if not equals or not values:
            raise ValueError(f"--grid must be FIELD=VALUE,VALUE... Received: --grid={text}")
        if field in grid:
            raise ValueError(f"--grid={field}=... must be given once, with all values. Received it twice.")
        parts = [part.strip() for part in _VALUES.findall(values)]
        parts = [part[1:-1] if len(part) > 1 and part[0] == part[-1] and part[0] in "'\"" else part for part in parts]
        grid[field] = [recipes.get(recipes.override(recipe, field, part), field) for part in parts]
    return grid


def _name(settings: Mapping[str, Any]) -> str:
    """Return a name for a directory. A hash replaces what does not fit into one."""
    full = json.dumps(settings, default=str)
    tails = [field.rpartition(".")[2] for field in settings]
    parts = [
        f"{tail if tails.count(tail) == 1 else field}={value}"
        for (field, value), tail in zip(settings.items(), tails, strict=True)
    ]
    short = [re.sub(r"[^\w.=+-]+", "-", part)[: part.index("=") + 1 + _LONGEST_VALUE] for part in parts]
    name = ",".join(short)[:150] or "base"
    return name if name == (",".join(parts) or "base") else f"{name}-{hashlib.sha256(full.encode()).hexdigest()[:6]}"
