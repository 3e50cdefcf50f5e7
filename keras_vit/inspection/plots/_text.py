"""Labels that fit: class and file names of any length, wrapped and shortened to the room that a figure has."""

import unicodedata

from keras_vit import _io

ELLIPSIS = "…"


def fit(text: str, width: int, lines: int = 2) -> str:
    r"""Wrap a text, and shorten it with an ellipsis where it does not fit.

    Args:
        text: Any text; line breaks and control characters become spaces.
        width: Largest number of columns per line. East Asian characters and emoji take two.
        lines: Largest number of lines.

    Returns:
        The text in up to `lines` lines.

    Example:
    >>> fit("a class with a long name", width=16)
    'a class with a\nlong name'
    """
    rows: list[str] = []
    rest = _io.one_line(text)
    while rest and len(rows) < lines:
        end = _fitting(rest, width)
        if end < len(rest) and len(rows) < lines - 1:
            space = rest.rfind(" ", 1, end + 1)
            row, rest = (rest[:space], rest[space + 1 :]) if space > 0 else (rest[:end], rest[end:])
        elif end < len(rest):
            row, rest = rest[: _fitting(rest, width - 1)] + ELLIPSIS, ""
        else:
            row, rest = rest, ""
        rows.append(row)
    return "\n".join(rows)


def prediction(label: str, probability: float, width: int) -> str:
    """Return a label with its probability, such as `"9 · 72 %"`, in one or two lines of up to `width` columns.

    Example:
    >>> prediction("cat", 0.72, width=20)
    'cat · 72 %'
    """
    suffix = f" · {100 * probability:.0f} %"
    one = fit(label, 1_000_000, lines=1)
    if _width(one + suffix) <= width:
        return one + suffix
    return f"{fit(label, width, lines=1)}\n{suffix.removeprefix(' · ')}"


def _fitting(text: str, width: int) -> int:
    """Return how many characters of a text fit into a line, at least 1."""
    used = 0.0
    for index, character in enumerate(text):
        used += _width(character)
        if used > width:
            return max(index, 1)
    return len(text)


def _width(text: str) -> float:
    """Return the width of a text in columns: that of the letter x is 1."""
    return sum(map(_character_width, text))


def _character_width(character: str) -> float:
    if unicodedata.east_asian_width(character) in "WF":
        return 2.0
    return 1.7 if character in "MWmw@%" else 1.35 if character.isupper() else 1.0
