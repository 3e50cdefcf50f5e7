"""Evaluators by name, as recipes and `--evaluators` write them: `"fewshot(shots=(1, 10))"`, `"knn"`."""

import dataclasses
import time
from collections.abc import Callable, Iterable

from absl import logging

from keras_vit import _checks
from keras_vit.evaluators import named, specs
from keras_vit.evaluators.subject import Subject

EVALUATORS: dict[str, Callable] = {
    "classification": named.Classification,
    "real": named.Real,
    "subset": named.Subset,
    "fewshot": named.FewShot,
    "knn": named.Knn,
    "linear_probe": named.LinearProbe,
    "vtab": named.Vtab,
}


@dataclasses.dataclass(frozen=True)
class Result:
    """What an evaluator found.

    Attributes:
        name: Of the evaluator in its suite.
        metrics: Numbers by name; None where a number could not be had.
        missing: Data sets that are not there, with the reason.
        seconds: How long it took.
    """

    name: str
    metrics: dict[str, float | None]
    missing: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


class Suite:
    """A list of evaluators.

    Each is written as a call, such as `"fewshot(source='tfds:oxford_iiit_pet', shots=(1, 5, 10, 25))"`, or as a name
    alone. All of them take `name=`, by which the results are listed, and `every=`, the steps between two evaluations
    during training.

    Args:
        texts: The evaluators.

    Raises:
        ValueError: If one cannot be read, does not exist, or two have the same name.
    """

    def __init__(self, texts: Iterable[str]):
        self.evaluators, self.every = {}, {}
        for text in texts:
            kind, arguments = specs.parse(text)
            if kind not in EVALUATORS:
                raise ValueError(
                    f"Unknown evaluator {kind!r} in {text!r}.{_checks.nearest(kind, EVALUATORS)} "
                    f"There are: {', '.join(EVALUATORS)}."
                )
            name, every = arguments.pop("name", kind), arguments.pop("every", None)
            if name in self.evaluators:
                raise ValueError(f"Two evaluators are called {name!r}: give one of them another with name='...'.")
            if every is not None:
                _checks.positive_int("every", every)
            self.evaluators[name] = specs.create(EVALUATORS[kind], arguments, text)
            self.every[name] = every

    def due(self, step: int, total_steps: int, every: int) -> list[str]:
        """Names of the evaluators to run after a step; all of them after the last one.

        Args:
            step: Number of steps made.
            total_steps: Length of the run.
            every: Steps between two evaluations where an evaluator does not say; 0 is at the end only.
        """
        intervals = {name: own or every for name, own in self.every.items()}
        return [name for name, own in intervals.items() if step == total_steps or (own and step % own == 0)]

    def intervals(self) -> list[int]:
        """The `every` of all evaluators that have one."""
        return [every for every in self.every.values() if every]

    def check(self, subject: Subject) -> None:
        """Opens all data once, so that what is missing is found before a long training.

        Raises:
            ValueError: If a split cannot be opened; names the evaluator. (VTAB lists missing tasks instead.)
        """
        for name, evaluator in self.evaluators.items():
            try:
                for place in evaluator.splits(subject):
                    subject.open_split(*place)
            except (OSError, ValueError, ImportError) as error:
                raise ValueError(f"The data of the evaluator {name!r} cannot be opened: {error}") from error

    def run(self, subject: Subject, names: Iterable[str] | None = None) -> list[Result]:
        """Runs evaluators on a network.

        Args:
            subject: The network and its data.
            names: Which of them; None for all.
        """
        results = []
        for name in self.evaluators if names is None else names:
            started = time.monotonic()
            metrics, missing = self.evaluators[name](subject)
            results.append(Result(name, metrics, missing, time.monotonic() - started))
            logging.info("%s: %s", name, ", ".join(f"{key} {format_metric(value)}" for key, value in metrics.items()))
            for what, why in missing.items():
                logging.warning("%s: %s is missing: %s", name, what, why)
        return results


def format_metric(value: float | None) -> str:
    """A metric in few characters."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
