"""Evaluators during training: which are due, and what they add to the metrics of the run."""

import dataclasses
from collections.abc import Callable

from absl import logging

from keras_vit.evaluators import report
from keras_vit.evaluators.result import Result
from keras_vit.evaluators.subject import Subject
from keras_vit.evaluators.suite import Suite


class Scheduled:
    """A suite that runs every so many steps.

    Args:
        suite: The evaluators.
        subject: Returns the network as it is now; called before each evaluation, because the weights have changed.
        total_steps: Length of the run; all evaluators run after the last step.
        every: Steps between two evaluations where an evaluator does not say; 0 is at the end only.
    """

    def __init__(self, suite: Suite, subject: Callable[[], Subject], total_steps: int, every: int):
        self.suite, self.subject, self.total_steps, self.every = suite, subject, total_steps, every
        self.last, self.failed = [], {}
        suite.check(subject())

    def intervals(self) -> list[int]:
        """Steps that a training loop must stop at to evaluate: multiples of these."""
        return self.suite.intervals()

    def due(self, step: int) -> list[str]:
        """Names of the evaluators to run after a step."""
        return self.suite.due(step, self.total_steps, self.every)

    def __call__(self, step: int) -> list[dict]:
        """Runs what is due after a step. An evaluator that fails does not end the training: what it raised is logged.

        Args:
            step: Number of steps made.

        Returns:
            For each evaluator that was due its metrics, named `evaluator/metric`, and `"evaluator"`; None for numbers
            that are not finite, which the lines of metrics cannot hold; `"not_measured"` with the reason if it failed.
            `last` keeps the `Result`s, `failed` the reasons by evaluator, of all calls.
        """
        subject = self.subject()
        self.last = [self._run(subject, name, step) for name in self.due(step)]
        return [_line(result) for result in self.last]

    def _run(self, subject: Subject, name: str, step: int) -> Result:
        try:
            (result,) = self.suite.run(subject, [name])
            return dataclasses.replace(result, details={})  # nobody reads them here, and `last` would keep them
        except Exception as error:  # whatever it is: the steps since the last checkpoint are worth more
            logging.exception("The evaluator %r failed after step %d. The training goes on.", name, step)
            self.failed[name] = f"{type(error).__name__}: {error}"
            return Result(name, {}, not_measured=self.failed[name])


def _line(result: Result) -> dict:
    numbers = {f"{result.name}/{key}": value for key, value in report.plain(result.metrics).items()}
    reason = {"not_measured": result.not_measured} if result.not_measured else {}
    return {"evaluator": result.name, **numbers, **reason}
