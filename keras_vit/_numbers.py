"""Formatting of numbers in tables, logs, pages and figures."""

NONE = "–"


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
