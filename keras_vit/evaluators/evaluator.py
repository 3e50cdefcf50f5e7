"""Interface of evaluators, and what they return."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_vit.evaluators.evaluation import Context


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of an evaluator.

    Attributes:
        metrics: Numbers by name; None where a number is not available.
        missing: Data sets that are not available, with the reason.
        details: Arrays by name, such as a confusion matrix, which are too large for tables and curves.
        name: Name of the evaluator in its suite.
        seconds: Duration of the measurement.
        not_measured: Why the evaluator could not run on this classifier; None if it ran.

    Example:
    >>> Result({"accuracy": 0.75}).metrics["accuracy"]
    0.75
    """

    metrics: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    missing: Mapping[str, str] = dataclasses.field(default_factory=dict)
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    name: str = ""
    seconds: float = 0.0
    not_measured: str | None = None

    @property
    def measured(self) -> bool:
        """Whether there is at least one number."""
        return any(value is not None for value in self.metrics.values())


class Evaluator(abc.ABC):
    """A measurement of a classifier.

    Evaluators are dataclasses: their fields are the arguments that `Suite` accepts, and they check them when they are
    created.

    Example:
    >>> @dataclasses.dataclass(kw_only=True)
    ... class ParameterCount(Evaluator):
    ...     def measure(self, context):
    ...         return Result({"parameters": context.classifier.card.parameters})
    """

    @abc.abstractmethod
    def check(self, context: Context) -> None:
        """Open the data and compare them with the classifier, without running it.

        Raises:
            NotMeasurable: If the classifier lacks what the evaluator needs.
            ValueError: If the data do not fit the classifier.
        """

    @abc.abstractmethod
    def measure(self, context: Context) -> Result:
        """Run the classifier on the data and return the result."""
