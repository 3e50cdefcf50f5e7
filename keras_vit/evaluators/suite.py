"""Evaluators by name, as recipes and `--evaluators` write them: `"fewshot(shots=(1, 10))"`, `"knn"`."""

import dataclasses
import time
from collections.abc import Iterable

from absl import logging

from keras_vit import _checks, _numbers, _spec
from keras_vit.evaluators.class_subset import Subset
from keras_vit.evaluators.classification import Classification
from keras_vit.evaluators.evaluation import Context, NotMeasurable
from keras_vit.evaluators.evaluator import Evaluator, Result
from keras_vit.evaluators.fewshot import FewShot
from keras_vit.evaluators.knn import Knn
from keras_vit.evaluators.linear_probe import LinearProbe
from keras_vit.evaluators.real import Real
from keras_vit.evaluators.vtab import Vtab

EVALUATORS: dict[str, type[Evaluator]] = {
    "classification": Classification,
    "real": Real,
    "subset": Subset,
    "fewshot": FewShot,
    "knn": Knn,
    "linear_probe": LinearProbe,
    "vtab": Vtab,
}


class Suite:
    """A list of evaluators.

    Each is written as a call, such as `"fewshot(source='tfds:oxford_iiit_pet', shots=(1, 5, 10, 25))"`, or as a name
    alone. All of them accept `name=`, the name of the result, and `every=`, the steps between two evaluations during
    training.

    Args:
        texts: The evaluators.

    Attributes:
        evaluators: Evaluators by name.
        every: Steps between two evaluations by name; None if the text does not say.

    Raises:
        ValueError: If a text cannot be read, an evaluator or argument does not exist, or two have the same name.

    Example:
    >>> suite = Suite(["classification", "knn(neighbors=(1, 20))"])
    >>> list(suite.evaluators)
    ['classification', 'knn']
    >>> classifier = keras_vit.inference.open_classifier("runs/digits")
    >>> context = keras_vit.evaluators.Context(classifier, keras_vit.evaluators.opener(batch_size=360), "digits")
    >>> results = suite.run(context)
    >>> list(results[1].metrics)
    ['k1', 'k20']
    """

    def __init__(self, texts: Iterable[str]):
        self.evaluators: dict[str, Evaluator] = {}
        self.every: dict[str, int | None] = {}
        for text in texts:
            calls = _spec.parse(text, "evaluator", "knn(neighbors=5)")
            if len(calls) != 1:
                raise ValueError(f"One evaluator is expected, such as 'knn(neighbors=5)'. Received: {text!r}.")
            (call,) = calls
            kind = call.function(EVALUATORS, "evaluator")
            evaluator, values = call.create(kind, extra=("name", "every"))
            name = _checks.optional_text("name", values.get("name")) or call.name
            every = values.get("every")
            if name in self.evaluators:
                raise ValueError(f"Two evaluators are called {name!r}: give one of them another name with name='...'.")
            self.evaluators[name] = evaluator
            self.every[name] = None if every is None else _checks.positive_int("every", every)

    def due(self, step: int, total_steps: int, every: int) -> list[str]:
        """Return the names of the evaluators that run after a step; all of them run after the last step."""
        intervals = {name: own or every for name, own in self.every.items()}
        return [name for name, own in intervals.items() if step == total_steps or (own and step % own == 0)]

    def intervals(self, every: int = 0) -> list[int]:
        """Return the `every` of all evaluators; those without one have the default `every`, 0 for no interval."""
        return [own or every for own in self.every.values() if own or every]

    def check(self, context: Context) -> None:
        """Open all data and compare them with the classifier, to find mistakes before a long training.

        An evaluator that needs what the classifier lacks is not a mistake, nor are missing data of VTAB: the results
        list them.

        Raises:
            ValueError: If a split cannot be opened, or its classes or images do not fit the classifier. The message
                names the evaluator.
        """
        for name, evaluator in self.evaluators.items():
            try:
                evaluator.check(context)
            except NotMeasurable:
                continue
            except (OSError, ValueError, ImportError) as error:
                raise ValueError(f"The evaluator {name!r} cannot run: {error}") from error

    def run(self, context: Context, names: Iterable[str] | None = None) -> list[Result]:
        """Run evaluators on a classifier.

        Args:
            context: The classifier and its data.
            names: Names of the evaluators to run; None for all.

        Returns:
            One result per evaluator. It holds the reason if the evaluator needs what the classifier lacks.
        """
        return [self._run(context, name) for name in (self.evaluators if names is None else names)]

    def _run(self, context: Context, name: str) -> Result:
        started = time.monotonic()
        try:
            result = self.evaluators[name].measure(context)
        except NotMeasurable as error:
            logging.warning("%s: not measured: %s", name, error)
            return Result(name=name, not_measured=str(error))
        shown = ", ".join(f"{key} {_numbers.metric(key, value)}" for key, value in result.metrics.items())
        logging.info("%s: %s", name, shown)
        for what, why in result.missing.items():
            logging.warning("%s: %s is missing: %s", name, what, why)
        return dataclasses.replace(result, name=name, seconds=time.monotonic() - started)
