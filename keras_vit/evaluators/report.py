"""Results of evaluators as a table, as JSON and as a row of Markdown."""

import json
from collections.abc import Sequence

from keras_vit.evaluators.suite import Result, format_metric

NOT_SHARES = ("loss", "ece", "l2")  # every other number that is not whole is a share, shown in percent


def table(results: Sequence[Result]) -> str:
    """One line a metric, for a terminal."""
    rows = [(result.name, key, _text(key, value)) for result in results for key, value in result.metrics.items()]
    rows += [(result.name, what, "missing") for result in results for what in result.missing]
    if not rows:
        return ""
    name_width, key_width, value_width = (max(len(row[column]) for row in rows) for column in range(3))
    lines, previous = [], None
    for name, key, value in rows:
        shown = name if name != previous else ""
        lines.append(f"{shown:<{name_width}}  {key:<{key_width}}  {value:>{value_width}}")
        previous = name
    return "\n".join(lines)


def to_json(results: Sequence[Result]) -> str:
    """All results as one JSON object: metrics by evaluator, and what was missing."""
    content = {
        result.name: {**result.metrics, **({"missing": result.missing} if result.missing else {})} for result in results
    }
    return json.dumps(content, indent=2)


def markdown_row(first: str, results: Sequence[Result]) -> str:
    """A heading, a rule and a row of Markdown, to be pasted into a table.

    Args:
        first: Content of the first cell, such as the name of the model.
        results: What to list, a column a metric; standard deviations are joined to what they belong to.
    """
    heads, cells = ["model"], [first]
    for result in results:
        for key, value in result.metrics.items():
            if key.endswith("_std"):
                continue
            spread = result.metrics.get(f"{key}_std")
            heads.append(f"{result.name} {key}" if len(results) > 1 else key)
            cells.append(_text(key, value) + (f" ± {100 * spread:.2f}" if spread is not None else ""))
    lines = (heads, ["---"] + ["---:"] * (len(heads) - 1), cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(key: str, value) -> str:
    """Shares in percent, other numbers as they are."""
    if not isinstance(value, float) or key in NOT_SHARES:
        return format_metric(value)
    return f"{100 * value:.2f}"
