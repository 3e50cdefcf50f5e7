"""Evaluators by name, as in recipes and `--evaluators`: `"fewshot(shots=(1, 10))"`, `"knn"`."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from absl import logging

from keras_vit.evaluators import results_table
from keras_vit.evaluators.evaluation import EVALUATORS, Context, Evaluator, NotMeasurable, Result
from keras_vit.runs.errors import lost_worker
from keras_vit.util import checks, literal_calls
from keras_vit.util.metrics import Metric


class Suite:
    """A list of evaluators.

    Each evaluator is a name, or a call such as `"fewshot(source='tfds:oxford_iiit_pet', shots=(1, 5, 10, 25))"`. Every
    evaluator accepts two more arguments: `name=`, the name of the result, and `every=`, the number of steps between
    two evaluations during training.

    Args:
        texts: The evaluators.

    Attributes:
        evaluators: Evaluators by name.
        every: Steps between two evaluations, by name; None for an evaluator without `every=`.

    Raises:
        ValueError: If a text cannot be parsed, an evaluator or an argument does not exist, or two evaluators have the
            same name.

    Example:
    >>> suite = Suite(["classification", "knn(neighbors=(1, 20))"])
    >>> predictor = keras_vit.open_predictor("runs/digits")
    >>> context = keras_vit.evaluators.Context(predictor, keras_vit.evaluators.split_opener(batch_size=360), "digits")
    >>> results = suite.run(context)
    >>> list(results[1].metrics)
    ['k1', 'k20']
    """

    def __init__(self, texts: Iterable[str]):
        self.evaluators: dict[str, Evaluator] = {}
        self.every: dict[str, int | None] = {}
        for text in texts:
            calls = literal_calls.parse(text, "evaluator", "knn(neighbors=5)")
            if len(calls) != 1:
                raise ValueError(f"Expected one evaluator, such as 'knn(neighbors=5)'. Received: {text!r}.")
            (call,) = calls
            kind = call.function(EVALUATORS, "evaluator")
            evaluator, values = call.create(kind, extra=("name", "every"))
            name = checks.optional_text("name", values.get("name")) or call.name
            every = values.get("every")
            if name in self.evaluators:
                raise ValueError(f"Two evaluators are called {name!r}. Rename one with name='...'.")
            self.evaluators[name] = evaluator
            self.every[name] = None if every is None else checks.positive_int("every", every)

    def metric(self, name: str) -> Metric:
        """Return the meaning of a number, given its name in `metrics.jsonl`, such as `"knn/k20"`."""
        evaluator, _, key = name.rpartition("/")
        checks.existing(f"evaluator {evaluator!r} for the metric {name!r}", evaluator, tuple(self.evaluators))
        return self.evaluators[evaluator].metric(key)

    def check(self, context: Context) -> None:
        """Open all data before a long training, and check that they fit the predictor.

        Evaluators that cannot measure this predictor, and missing data of VTAB, do not raise errors. The results list
        both.

        Raises:
            ValueError: If an evaluator cannot run for another reason.
        """
        for name, evaluator in self.evaluators.items():
            try:
                evaluator.check(context)
            except NotMeasurable:
                continue
            except (OSError, ValueError, ImportError) as error:
                raise ValueError(f"The evaluator {name!r} cannot run: {error}") from error

    def run(self, context: Context, names: Iterable[str] | None = None) -> list[Result]:
        """Run all evaluators, or the evaluators with the given names.

        If an evaluator cannot measure the predictor, the `not_measured` field of its result contains the reason.
        """
        return [self._run(context, name) for name in (self.evaluators if names is None else names)]

    def _run(self, context: Context, name: str) -> Result:
        evaluator = self.evaluators[name]
        try:
            result = evaluator.describe(evaluator.measure(context), name)
        except NotMeasurable as error:
            logging.warning("%s: not measured: %s", name, error)
            return Result(name=name, not_measured=str(error))
        logging.info("%s: %s", name, ", ".join(f"{key} {result.text(key)}" for key in result.metrics))
        for what, why in result.missing.items():
            logging.warning("%s: %s is missing: %s", name, what, why)
        return result


class Scheduled:
    """A suite whose evaluators run at intervals during training. Features are computed again for each evaluation.

    Args:
        suite: The evaluators.
        context: The predictor in training, and its data.
        every: Steps between two evaluations, for evaluators without `every=`; 0 evaluates only at the end.

    Attributes:
        last: Results of the last evaluation.
        failed: Errors of failed evaluators by name, over all evaluations.
    """

    def __init__(self, suite: Suite, context: Context, every: int):
        self.suite, self.context, self.every = suite, context, every
        self.last: list[Result] = []
        self.failed: dict[str, str] = {}
        suite.check(context)

    def intervals(self) -> list[int]:
        """Return the intervals in steps. The training loop must stop at every multiple of an interval."""
        return [own or self.every for own in self.suite.every.values() if own or self.every]

    def due(self, step: int, last: bool = False) -> list[str]:
        """Return the names of the evaluators that run after a step. After the last step, all evaluators run."""
        intervals = {name: own or self.every for name, own in self.suite.every.items()}
        return [name for name, own in intervals.items() if last or (own and step % own == 0)]

    def __call__(self, step: int, last: bool = False) -> list[dict[str, Any]]:
        """Run the evaluators that are due. An error of an evaluator is logged and does not stop training.

        Returns a line of metrics for each evaluator, with `"not_measured"` if the evaluator failed.
        """
        self.context.forget_features()
        self.last = [self._run(name, step) for name in self.due(step, last)]
        self.context.forget_features()
        return [_line(result) for result in self.last]

    def _run(self, name: str, step: int) -> Result:
        try:
            (result,) = self.suite.run(self.context, [name])
            return dataclasses.replace(result, details={})  # training does not need the arrays
        except Exception as error:  # a failed evaluator must not lose the steps since the last checkpoint
            if lost_worker(error):
                raise
            logging.exception("The evaluator %r failed after step %d. Training continues.", name, step)
            self.failed[name] = f"{type(error).__name__}: {error}"
            return Result(name=name, not_measured=self.failed[name])


def _line(result: Result) -> dict[str, Any]:
    numbers = {f"{result.name}/{key}": value for key, value in results_table.plain(result.metrics).items()}
    reason = {"not_measured": result.not_measured} if result.not_measured else {}
    return {"evaluator": result.name, **numbers, **reason}
