"""Numbers as text: in tables, logs, pages and figures."""

NONE = "–"


def number(value: object, digits: int = 4) -> str:
    """Return a number such as 101,514 or 0.0312, a dash for None, and anything else as text."""
    if value is None:
        return NONE
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}"


def percent(fraction: float, digits: int = 1) -> str:
    """Return a fraction such as 82.5%; measured ones, such as accuracies, with two digits."""
    return f"{fraction:.{digits}%}"
