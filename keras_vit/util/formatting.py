"""Formatting of numbers, texts and tables for logs, pages, figures and files."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NONE = "–"
_FOLDERS = re.compile(r"""(^|[:'"=\s(])/(?![/\s])(?:[^/'"]+/)*""")  # folders of an absolute path


def number(value: object, digits: int = 4) -> str:
    """Format a number, such as 101,514 or 0.0312. None gives a dash, and other values their `str`."""
    if value is None:
        return NONE
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}"


def short(count: int) -> str:
    """Format a count with three significant digits if it has at least seven digits, such as 21.5 M."""
    unit, size = ("B", 1e9) if count >= 1e9 else ("M", 1e6)
    return f"{count / size:.3g} {unit}" if count >= 1e6 else f"{count:,}"


def percent(fraction: float, digits: int = 1) -> str:
    """Format a fraction in percent, such as 82.5%. Use two digits for measured fractions, such as accuracies."""
    return f"{fraction:.{digits}%}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table. Columns whose title ends in ":" are right-aligned."""

    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join("–" if cell is None else str(cell).replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "|".join("---:" if title.endswith(":") else "---" for title in header) + "|"
    return "\n".join([line(title.removesuffix(":") for title in header), rule, *map(line, rows)])


def one_line(text: object) -> str:
    """Replace line breaks and other control characters in a text with spaces."""
    return " ".join("".join(char if char.isprintable() else " " for char in str(text)).split())


def without_folders(value: Any, instead: str = "") -> Any:
    """Shorten each absolute path in a value to its last part, preceded by `instead`."""
    if isinstance(value, Mapping):
        return {key: without_folders(item, instead) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_folders(item, instead) for item in value]
    is_path = isinstance(value, str) and "/" in value
    return _FOLDERS.sub(rf"\g<1>{instead}", value.rstrip("/")) if is_path else value


def as_number(value: float) -> str:
    """Format a number with five significant digits, but never round its integer part: 1953.4, 128250, 0.031250."""
    return f"{value:.0f}" if 99_999.5 <= abs(value) < 1e15 else f"{value:.5g}"
