"""Results of evaluators as a table, as JSON and as a row of Markdown."""

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from keras_vit.evaluators.result import Result, format_metric

NOT_SHARES = ("loss", "ece", "l2")  # every other number that is not whole is a share, shown in percent


def table(results: Sequence[Result]) -> str:
    """One line a metric, for a terminal; what is missing or was not measured with its reason."""
    texts = [_text(key, value) for result in results for key, value in result.metrics.items()]
    value_width, rows = max(map(len, texts), default=0), []
    for result in results:
        rows += [(result.name, key, f"{_text(key, value):>{value_width}}") for key, value in result.metrics.items()]
        rows += [(result.name, what, f"missing: {why}") for what, why in result.missing.items()]
        rows += [(result.name, "", f"not measured: {result.not_measured}")] if result.not_measured else []
    if not rows:
        return ""
    name_width, key_width = (max(len(row[column]) for row in rows) for column in range(2))
    lines, previous = [], None
    for name, key, value in rows:
        column = f"{key:<{key_width}}  " if key else ""
        lines.append(f"{name if name != previous else '':<{name_width}}  {column}{value}")
        previous = name
    return "\n".join(lines)


def to_json(results: Sequence[Result]) -> str:
    """All results as one JSON object: metrics and details by evaluator, and what was missing or not measured."""
    content = {}
    for result in results:
        content[result.name] = {**result.details, **result.metrics}
        if result.missing:
            content[result.name]["missing"] = result.missing
        if result.not_measured:
            content[result.name]["not_measured"] = result.not_measured
    return json.dumps(plain(content), allow_nan=False)


def plain(value):
    """Returns what JSON can say of a value: lists for arrays, None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def markdown_row(first: str, results: Sequence[Result]) -> str:
    """A heading, a rule and a row of Markdown, to be pasted into a table; below them what is missing, with its reason.

    Args:
        first: Content of the first cell, such as the name of the model.
        results: What to list, a column a metric; standard deviations are joined to what they belong to.
    """
    heads, cells, notes = ["model"], [first], []
    for result in results:
        for key, value in result.metrics.items():
            if key.endswith("_std"):
                continue
            spread = result.metrics.get(f"{key}_std")
            heads.append(f"{result.name} {key}" if len(results) > 1 else key)
            cells.append(_text(key, value) + (f" ± {100 * spread:.2f}" if spread is not None else ""))
        notes += [f"- {result.name} {what} is missing: {why}" for what, why in result.missing.items()]
        if result.not_measured:
            heads.append(result.name)
            cells.append("-")
            notes.append(f"- {result.name} was not measured: {result.not_measured}")
    lines = (heads, ["---"] + ["---:"] * (len(heads) - 1), cells)
    rows = [f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines]
    return "\n".join([*rows, "", *notes] if notes else rows)


def _text(key: str, value) -> str:
    """Shares in percent, other numbers as they are."""
    if not isinstance(value, float) or key in NOT_SHARES:
        return format_metric(value)
    return f"{100 * value:.2f}"
