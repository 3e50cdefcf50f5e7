"""Results of evaluators as a text table or as JSON."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.evaluators.evaluation import Result


def table(results: Sequence[Result]) -> str:
    """Return a text table with one line per metric, per missing data set, and per evaluator that measured nothing."""
    shown = [{key: _parts(result.text(key)) for key in result.metrics} for result in results]
    value_width = max((len(number) for texts in shown for number, _ in texts.values()), default=0)
    rows = []
    for result, texts in zip(results, shown, strict=True):
        rows += [(result.name, key, f"{number:>{value_width}}{unit}") for key, (number, unit) in texts.items()]
        rows += [(result.name, what, f"missing: {why}") for what, why in result.missing.items()]
        rows += [(result.name, "", f"not measured: {result.not_measured}")] if result.not_measured else []
    if not rows:
        return ""
    name_width, key_width = (max(len(row[column]) for row in rows) for column in range(2))
    lines, previous = [], None
    for name, key, value in rows:
        column = f"{key:<{key_width}}  " if key else ""
        lines.append(f"{name if name != previous else '':<{name_width}}  {column}{value}".rstrip())
        previous = name
    return "\n".join(lines)


def _parts(text: str) -> tuple[str, str]:
    """Split a number from its unit, so that numbers can be aligned."""
    number = text.partition(" ")[0].removesuffix("%")
    return number, text[len(number) :]


def to_json(results: Sequence[Result]) -> str:
    """Return all results as one JSON object, with metrics, details, missing data and errors of each evaluator."""
    content = {}
    for result in results:
        content[result.name] = {**result.details, **result.metrics}
        if result.missing:
            content[result.name]["missing"] = result.missing
        if result.not_measured:
            content[result.name]["not_measured"] = result.not_measured
    return json_text(content)


def json_text(content: Any) -> str:
    """Convert a value to JSON. Arrays become lists, and numbers that are not finite become null."""
    return json.dumps(plain(content), allow_nan=False)


def plain(value: Any) -> Any:
    """Convert a value for JSON. Arrays become lists, and numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
