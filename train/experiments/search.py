"""Settings of a sweep: values of recipe fields by their dotted names."""

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keras_vit import recipe as recipes

Grid = Mapping[str, Iterable[Any]]
Settings = dict[str, Any]
# Commas inside quotes and brackets do not separate values. Parentheses may be nested once.
_VALUES = re.compile(r"""(?:'[^']*'|"[^"]*"|\((?:[^()]|\([^()]*\))*\)|\[[^]]*\]|\{[^}]*\}|[^,])+""")
_LONGEST_NAME = 150


def expand(recipe: recipes.Recipe, grid: Grid | Sequence[Grid]) -> dict[str, Settings]:
    """Return all combinations of the values of one or several grids, by the names of their runs."""
    runs: dict[str, Settings] = {}
    for part in [grid] if isinstance(grid, Mapping) else grid:
        values = {field: list(choices) for field, choices in part.items()}
        if empty := [field for field, choices in values.items() if not choices]:
            raise ValueError(f"grid must have at least one value per field. Received none for {', '.join(empty)}.")
        for combination in itertools.product(*values.values()):
            settings = dict(zip(values, combination, strict=True))
            name = _name(settings)
            try:
                changed = recipes.check(recipes.replace(recipe, settings))
            except ValueError as error:
                raise ValueError(f"The run {name} has no valid recipe: {error}") from error
            runs[name] = {field: recipes.get(changed, field) for field in settings}
    return runs


def parse_grid(texts: Iterable[str], recipe: recipes.Recipe) -> dict[str, list[Any]]:
    """Parse a grid from command-line arguments `FIELD=VALUE,VALUE...`. The recipe determines the types of values."""
    grid = {}
    for text in texts:
        field, equals, values = text.partition("=")
        if not equals or not values or field in grid:
            raise ValueError(f"Expected FIELD=VALUE,VALUE..., once per field. Received: {', '.join(texts)}")
        parts = [re.sub(r"""^(['"])(.*)\1$""", r"\2", part.strip()) for part in _VALUES.findall(values)]
        grid[field] = [recipes.get(recipes.override(recipe, field, part), field) for part in parts]
    return grid


def _name(settings: Settings) -> str:
    """Return a name for the directory of a run. If characters had to be replaced, a hash is appended."""
    text = ",".join(f"{field}={value}" for field, value in settings.items())
    name = re.sub(r"[^\w.,=+-]+", "-", text)[:_LONGEST_NAME]
    return name if name == text else f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
