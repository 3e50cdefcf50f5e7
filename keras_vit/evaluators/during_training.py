"""Evaluators during training."""

import dataclasses
from typing import Any

from absl import logging

from keras_vit.evaluators import results_table
from keras_vit.evaluators.evaluation import Context
from keras_vit.evaluators.evaluator import Result
from keras_vit.evaluators.suite import Suite


class Scheduled:
    """A suite whose evaluators run at intervals during training.

    Args:
        suite: The evaluators.
        context: The classifier in training, and its data. Its features are computed anew for each evaluation.
        total_steps: Length of the run. All evaluators run after the last step.
        every: Steps between two evaluations of evaluators without `every=`; 0 is at the end only.

    Attributes:
        last: Results of the last evaluation.
        failed: Errors of evaluators that failed, by name, in all evaluations.

    Raises:
        ValueError: If the data of an evaluator do not fit the classifier, see `Suite.check`.

    Example:
    >>> classifier = keras_vit.inference.open_classifier("runs/digits")
    >>> context = keras_vit.evaluators.Context(classifier, keras_vit.evaluators.opener(batch_size=360), "digits")
    >>> scheduled = Scheduled(Suite(["classification(every=100)"]), context, total_steps=250, every=0)
    >>> [step for step in (50, 100, 200, 250) if scheduled.due(step)]
    [100, 200, 250]
    """

    def __init__(self, suite: Suite, context: Context, total_steps: int, every: int):
        self.suite, self.context, self.total_steps, self.every = suite, context, total_steps, every
        self.last: list[Result] = []
        self.failed: dict[str, str] = {}
        suite.check(context)

    def intervals(self) -> list[int]:
        """Return numbers of steps, at whose multiples the training loop must stop to evaluate."""
        return self.suite.intervals(self.every)

    def due(self, step: int) -> list[str]:
        """Return the names of the evaluators that run after a step."""
        return self.suite.due(step, self.total_steps, self.every)

    def __call__(self, step: int) -> list[dict[str, Any]]:
        """Run the evaluators that are due. The training continues if one fails, and its error is logged.

        Returns a line of metrics per evaluator, with `"not_measured"` if it failed.
        """
        self.context.forget_features()
        self.last = [self._run(name, step) for name in self.due(step)]
        self.context.forget_features()
        return [_line(result) for result in self.last]

    def _run(self, name: str, step: int) -> Result:
        try:
            (result,) = self.suite.run(self.context, [name])
            return dataclasses.replace(result, details={})  # arrays that nothing reads during training
        except Exception as error:  # no error of an evaluator is worth the steps since the last checkpoint
            logging.exception("The evaluator %r failed after step %d. The training continues.", name, step)
            self.failed[name] = f"{type(error).__name__}: {error}"
            return Result(name=name, not_measured=self.failed[name])


def _line(result: Result) -> dict[str, Any]:
    numbers = {f"{result.name}/{key}": value for key, value in results_table.plain(result.metrics).items()}
    reason = {"not_measured": result.not_measured} if result.not_measured else {}
    return {"evaluator": result.name, **numbers, **reason}
