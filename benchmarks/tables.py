"""Tables in Markdown files, and the mean and standard deviation of several runs."""

import os
import re
import statistics
from collections.abc import Sequence

from keras_vit.util import file_io


def percent(values: Sequence[float]) -> str:
    """Return the mean and the sample standard deviation in percent: `"93.12 ± 0.15"`."""
    if not len(values):
        return "-"
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.2f}{spread}"


def replace_rows(path: str, name: str, table: str) -> None:
    """Update the rows of a table between `<!-- name -->` and `<!-- /name -->`.

    A row replaces the row with the same first cell. New rows are added at the end, and other rows do not change. If the
    columns differ, the whole table is replaced.
    """
    header, rule, *rows = table.splitlines()
    old = [line for line in _around(path, name)[1].splitlines() if line.startswith("|")]
    new = {_first_cell(row): row for row in rows}
    kept = [new.pop(_first_cell(row), row) for row in old[2:] if old[0] == header]
    write_between(path, name, "\n".join([header, rule, *kept, *new.values()]))


def write_between(path: str | os.PathLike, name: str, text: str) -> None:
    """Replace the text between `<!-- name -->` and `<!-- /name -->` in a file."""
    before, _, after = _around(path, name)
    file_io.write_text(path, f"{before}{text}\n{after}")


def _around(path: str | os.PathLike, name: str) -> tuple[str, str, str]:
    """Split the text of a file at two markers: before, between and after the markers."""
    with open(path, encoding="utf-8") as file:
        content = file.read()
    pattern = rf"(?<=<!-- {re.escape(name)} -->\n).*?(?=<!-- /{re.escape(name)} -->)"
    found = list(re.finditer(pattern, content, re.DOTALL))
    if len(found) != 1:
        raise ValueError(
            f"{path} must contain <!-- {name} --> and <!-- /{name} --> once. It has {len(found)} such comments."
        )
    return content[: found[0].start()], found[0].group(), content[found[0].end() :]


def _first_cell(row: str) -> str:
    return row.split("|")[1].strip()
