"""Tables inside of Markdown files, and figures of several runs."""

import statistics
from collections.abc import Sequence

from keras_vit._io import read_between, write_between

__all__ = ["percent", "replace_rows", "write_between"]


def percent(values: Sequence[float]) -> str:
    """Return mean and sample standard deviation in percent: `"93.12 ± 0.15"`."""
    if not len(values):
        return "-"
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.2f}{spread}"


def replace_rows(path: str, name: str, table: str) -> None:
    """Replace the rows of a table between `<!-- name -->` and `<!-- /name -->` that have the same first cell.

    Other rows stay, and new ones follow them. A table with other columns is replaced as a whole.
    """
    header, rule, *rows = table.splitlines()
    old = [line for line in read_between(path, name).splitlines() if line.startswith("|")]
    new = {_first_cell(row): row for row in rows}
    kept = [new.pop(_first_cell(row), row) for row in old[2:] if old[0] == header]
    write_between(path, name, "\n".join([header, rule, *kept, *new.values()]))


def _first_cell(row: str) -> str:
    return row.split("|")[1].strip()
