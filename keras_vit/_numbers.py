"""Numbers as text: in tables, logs, pages and figures."""

_NOT_SHARES = ("loss", "ece", "l2", "norm", "rate", "second")  # parts of the names of metrics that are not fractions
NONE = "–"


def number(value: object, digits: int = 4) -> str:
    """Return a number such as 101,514 or 0.0312, a dash for None, and anything else as text."""
    if value is None:
        return NONE
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}"


def metric(name: str, value: float | None, digits: int = 4) -> str:
    """Return the value of a metric: a fraction in percent, others in `digits` significant digits."""
    quantity = name.rpartition("/")[2]
    if not isinstance(value, float) or any(part in quantity for part in _NOT_SHARES):
        return number(value, digits)
    return f"{100 * value:.2f} %"
