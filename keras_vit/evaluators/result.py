"""What evaluators return."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Findings:
    """What one evaluator found.

    Attributes:
        metrics: Numbers by name; None where a number could not be had.
        missing: Data sets that are not there, with the reason.
        details: Arrays by name, such as a confusion matrix: for programs, too large for tables and curves.
    """

    metrics: dict[str, float | None]
    missing: dict[str, str] = dataclasses.field(default_factory=dict)
    details: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Result:
    """The findings of an evaluator, with its name.

    Attributes:
        name: Of the evaluator in its suite.
        metrics: Numbers by name; None where a number could not be had.
        missing: Data sets that are not there, with the reason.
        seconds: How long it took.
        details: Arrays by name, see `Findings`.
        not_measured: Why the evaluator could not run on this network; None if it ran.
    """

    name: str
    metrics: dict[str, float | None]
    missing: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    details: dict = dataclasses.field(default_factory=dict)
    not_measured: str | None = None

    @property
    def measured(self) -> bool:
        """Whether there is at least one number."""
        return any(value is not None for value in self.metrics.values())


def format_metric(value: float | None) -> str:
    """A metric in few characters."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
