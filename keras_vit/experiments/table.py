"""The table of a sweep: a row per setting, with mean and standard deviation over the seeds."""

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from keras_vit import _io, _numbers
from keras_vit._metrics import Metric

SEED = "seed"
_LONGEST_VALUE = 40


@dataclasses.dataclass
class Row:
    """Results of the runs that differ only in the seed.

    Attributes:
        settings: Swept fields other than the seed, and their values.
        runs: Number of runs.
        metrics: Values of the finished runs by metric.
    """

    settings: dict[str, Any]
    runs: int = 0
    metrics: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    def mean(self, metric: str) -> float | None:
        """Return the mean of a metric over the finished runs, or None if there is none."""
        values = self.metrics.get(metric)
        return statistics.fmean(values) if values else None

    def std(self, metric: str) -> float | None:
        """Return the standard deviation over the finished runs (of the sample), or None if there are not two."""
        values = self.metrics.get(metric, ())
        return statistics.stdev(values) if len(values) > 1 else None


@dataclasses.dataclass(frozen=True)
class Table:
    """Results of a sweep.

    Attributes:
        rows: Results by setting.
        metric: Metric that decides which row is best: the lowest of a loss or calibration error, else the highest.
        failed: What happened to the runs that failed, by name.
        left: Number of runs that are not finished and have not failed.
    """

    rows: Sequence[Row]
    metric: str
    failed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    left: int = 0

    @property
    def best(self) -> Row | None:
        """The row with the best mean of the metric, or None if no run is finished."""
        means = [(row.mean(self.metric), row) for row in self.rows]
        measured = [(mean, row) for mean, row in means if mean is not None and math.isfinite(mean)]
        return (min if self.metric.endswith(("loss", "ece")) else max)(
            measured, key=lambda pair: pair[0], default=(0.0, None)
        )[1]

    def markdown(self) -> str:
        """Return the table as Markdown, the best row in bold."""
        best, lines = self.best, []
        fields = list(dict.fromkeys(field for row in self.rows for field in row.settings))
        metrics = list(dict.fromkeys([self.metric, *(name for row in self.rows for name in row.metrics)]))
        for row in self.rows:
            cells = [shorten(row.settings.get(field)) for field in fields]
            cells += [self._runs(row), *(self._cell(row, name) for name in metrics)]
            lines.append([f"**{cell}**" if row is best and cell != _numbers.NONE else cell for cell in cells])
        header = [*fields, "runs", *(f"{name}:" for name in metrics)]
        parts = [_io.markdown_table(header, lines)]
        if any(row.std(self.metric) is not None for row in self.rows):
            parts.append("± is the standard deviation over the seeds.")
        parts += [f"- {name} failed: {reason}" for name, reason in self.failed.items()]
        if self.left:
            parts.append(f"{self.left} runs are not finished.")
        return "\n".join([parts[0], "", *parts[1:]]).rstrip() + "\n"

    @staticmethod
    def _runs(row: Row) -> str:
        done = max((len(values) for values in row.metrics.values()), default=0)
        return str(row.runs) if done == row.runs else f"{done} of {row.runs}"

    @staticmethod
    def _cell(row: Row, name: str) -> str:
        mean, std = row.mean(name), row.std(name)
        text = metric_of(name).text(mean)
        return text if std is None else f"{text} ± {metric_of(name).text(std, digits=2)}"


def metric_of(name: str) -> Metric:
    """Return the meaning of a number in `metrics.jsonl`."""
    return Metric(name, unit="" if name.endswith(("loss", "ece", "l2")) else "%")


def shorten(value: Any) -> str:
    """Return the value of a field in few characters."""
    text = _io.one_line(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
