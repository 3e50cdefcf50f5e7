"""Published results of the papers with their sources, from `assets/published.json`."""

import functools
import os
from typing import Any

from keras_vit.util import file_io, formatting

_FILE = os.path.join(os.path.dirname(__file__), "assets", "published.json")


@functools.cache
def content() -> dict[str, Any]:
    """Return the content of the file: `"panels"` (values by panel and setting) and `"tables"`."""
    return file_io.read_json(_FILE)


def value(panel: str, setting: str) -> str | None:
    """Return the published value for a setting of a panel, or None."""
    return content()["panels"][panel].get(setting)


def markdown() -> str:
    """Return the tables of published results with their sources."""
    parts = []
    for table in content()["tables"]:
        parts += [f"### {table['title']}", formatting.markdown_table(table["header"], table["rows"]), table["source"]]
    return "\n\n".join(parts)
