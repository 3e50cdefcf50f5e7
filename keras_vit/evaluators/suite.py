"""Evaluators by name, as recipes and `--evaluators` write them: `"fewshot(shots=(1, 10))"`, `"knn"`."""

import time
from collections.abc import Callable, Iterable

from absl import logging

from keras_vit import _calls, _checks
from keras_vit.evaluators import arguments, on_features, on_scores
from keras_vit.evaluators.result import Result, format_metric
from keras_vit.evaluators.subject import NotMeasurable, Subject

EVALUATORS: dict[str, Callable] = {
    "classification": on_scores.Classification,
    "real": on_scores.Real,
    "subset": on_scores.Subset,
    "fewshot": on_features.FewShot,
    "knn": on_features.Knn,
    "linear_probe": on_features.LinearProbe,
    "vtab": on_features.Vtab,
}


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
            calls = _calls.parse(text, "evaluator", "fewshot(shots=(1, 10))")
            if len(calls) != 1:
                raise ValueError(f"One evaluator is expected, such as 'fewshot(shots=(1, 10))'. Received: {text!r}.")
            evaluator, values = calls[0].create(calls[0].function(EVALUATORS, "evaluator"), extra=("name", "every"))
            name, every = arguments.text("name", values.get("name")) or calls[0].name, values.get("every")
            if name in self.evaluators:
                raise ValueError(f"Two evaluators are called {name!r}: give one of them another with name='...'.")
            if every is not None:
                _checks.positive_int("every", every)
            self.evaluators[name] = evaluator
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
        """Opens all data once and compares them with the network, so that mistakes are found before a long training.

        Raises:
            ValueError: If a split cannot be opened, or has other classes or images than the network; names the
                evaluator. (VTAB lists missing tasks instead, and `run` what this network cannot give.)
        """
        for name, evaluator in self.evaluators.items():
            try:
                evaluator.check(subject)
            except NotMeasurable:
                continue
            except (OSError, ValueError, ImportError) as error:
                raise ValueError(f"The evaluator {name!r} cannot run: {error}") from error

    def run(self, subject: Subject, names: Iterable[str] | None = None) -> list[Result]:
        """Runs evaluators on a network.

        Args:
            subject: The network and its data.
            names: Which of them; None for all.

        Returns:
            A result for each; of those that need what the network does not give, the reason.
        """
        results = []
        for name in self.evaluators if names is None else names:
            started = time.monotonic()
            try:
                found = self.evaluators[name](subject)
            except NotMeasurable as error:
                results.append(Result(name, {}, not_measured=str(error)))
                logging.warning("%s: not measured: %s", name, error)
                continue
            results.append(Result(name, found.metrics, found.missing, time.monotonic() - started, found.details))
            shown = ", ".join(f"{key} {format_metric(value)}" for key, value in found.metrics.items())
            logging.info("%s: %s", name, shown)
            for what, why in found.missing.items():
                logging.warning("%s: %s is missing: %s", name, what, why)
        return results
