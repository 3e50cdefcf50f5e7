"""Evaluators during training: which are due, and what they add to the metrics of the run."""

from collections.abc import Callable

from keras_vit.evaluators import report
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
        self.last = []
        suite.check(subject())

    def intervals(self) -> list[int]:
        """Steps that a training loop must stop at to evaluate: multiples of these."""
        return self.suite.intervals()

    def due(self, step: int) -> list[str]:
        """Names of the evaluators to run after a step."""
        return self.suite.due(step, self.total_steps, self.every)

    def __call__(self, step: int) -> list[dict]:
        """Runs what is due after a step.

        Args:
            step: Number of steps made.

        Returns:
            For each evaluator that ran its metrics, named `evaluator/metric`, and `"evaluator"`; None for numbers that
            are not finite, which the lines of metrics cannot hold. `last` keeps the `Result`s.
        """
        self.last = self.suite.run(self.subject(), self.due(step))
        return [
            {
                "evaluator": result.name,
                **{f"{result.name}/{key}": value for key, value in report.plain(result.metrics).items()},
            }
            for result in self.last
        ]
