"""Tables of runs with one row per setting, and the mean and standard deviation over seeds."""

import dataclasses
import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from keras_vit.util import formatting
from keras_vit.util.metrics import Metric

_LONGEST_VALUE = 40


@dataclasses.dataclass
class Row:
    """Runs that differ only in the seed."""

    settings: dict[str, Any]  # the fields in which the rows of a table differ
    runs: dict[str, str] = dataclasses.field(default_factory=dict)  # state of each run, by name
    results: list[dict[str, float]] = dataclasses.field(default_factory=list)  # metrics of runs with results

    def values(self, metric: str) -> list[float]:
        """Return the values of a metric in all results that contain it."""
        return [result[metric] for result in self.results if metric in result]

    def goodness(self, metric: Metric) -> float:
        """Return a number that is larger for a better mean, or -inf if a run has no result."""
        values = self.values(metric.name)
        mean = statistics.fmean(values) if len(values) == len(self.runs) else math.nan
        return metric.goodness(mean) if math.isfinite(mean) else -math.inf


@dataclasses.dataclass(frozen=True)
class Table:
    """Table with runs as rows and metrics as columns."""

    rows: Sequence[Row]
    metrics: Sequence[Metric]

    def markdown(self, across: bool = False) -> str:
        """Return the table as Markdown, without the folders of paths. `across` transposes the table."""
        lines = [["runs", *(self.rows[0].settings if self.rows else ()), *(metric.name for metric in self.metrics)]]
        for row in self.rows:
            settings = [_short(formatting.without_folders(value)) for value in row.settings.values()]
            lines.append([_runs(row), *settings, *(_cell(row.values(metric.name), metric) for metric in self.metrics)])
        if across:
            lines = [list(line) for line in zip(*lines, strict=True)]
        reasons = [f"- {name} {state}\n" for row in self.rows for name, state in row.runs.items() if ":" in state]
        return f"{formatting.markdown_table(lines[0], lines[1:])}\n\n{''.join(reasons)}".rstrip() + "\n"


def _runs(row: Row) -> str:
    """Return the name of the run if there is only one, else the number of runs in each state."""
    states = [state.partition(":")[0] for state in row.runs.values()]
    if len(states) == 1:
        return ", ".join([*row.runs, *(state for state in states if state != "finished")])
    return ", ".join(f"{number} {state}" for state, number in Counter(states).items())


def _cell(values: Sequence[float], metric: Metric) -> str:
    if not values:
        return formatting.NONE
    if len(values) == 1:
        return metric.text(values[0])
    unit = f" {metric.unit}" if metric.unit != "%" else ""
    mean, deviation = metric.text(statistics.fmean(values)), metric.text(statistics.stdev(values), digits=2)
    return f"{mean.removesuffix(unit)} ± {deviation}"


def _short(value: Any) -> str:
    text = formatting.one_line(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
