"""Results of several runs as mean and spread, and as a table inside of a Markdown file."""

import os
import re
from collections.abc import Sequence

import numpy as np


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; the latter is NaN of a single value."""
    values = np.asarray(values, np.float64)
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else float("nan")


def percent(values: Sequence[float]) -> str:
    """Shares as `"93.12 ± 0.15"`, or `"93.12"` of a single one; `"-"` of none."""
    if not len(values):
        return "-"
    mean, spread = mean_and_spread(values)
    return f"{100 * mean:.2f}" + (f" ± {100 * spread:.2f}" if len(values) > 1 else "")


def table(rows: Sequence[dict[str, str]]) -> str:
    """A Markdown table; the columns are those of the first row."""
    heads = list(rows[0])
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *([row[head] for head in heads] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_between(path: str, name: str, text: str) -> None:
    """Replaces what stands between `<!-- name -->` and `<!-- /name -->` in a file.

    Args:
        path: The file.
        name: Of the place.
        text: What to put there.

    Raises:
        ValueError: If the file has no such place.
    """
    with open(path, encoding="utf-8") as file:
        content = file.read()
    pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    new, count = pattern.subn(lambda match: f"{match[1]}{text}\n{match[2]}", content)
    if count != 1:
        raise ValueError(f"{path} must have one place between <!-- {name} --> and <!-- /{name} -->. It has {count}.")
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(new)
    os.replace(temporary, path)
