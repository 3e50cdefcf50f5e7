"""Accuracy of a linear classifier on frozen features. Held-out examples determine the regularization."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, cast

import numpy as np

from keras_vit.evaluators.dataset import Labeled
from keras_vit.evaluators.evaluation import register
from keras_vit.evaluators.features import FeatureEvaluator, check_examples
from keras_vit.evaluators.fewshot import RidgeClassifier
from keras_vit.evaluators.linear_fit import LinearFit, softmax_loss
from keras_vit.util import checks
from keras_vit.util.metrics import Metric
from keras_vit.util.progress import track

SOLVERS = ("lbfgs", "ridge")
L2 = {"lbfgs": tuple(10.0**k for k in range(-6, 2)), "ridge": tuple(2.0**k for k in range(-4, 21, 4))}
HELD_OUT = 0.1


@register
@dataclasses.dataclass(kw_only=True)
class LinearProbe(FeatureEvaluator):
    """Accuracy of a linear classifier that is trained on the whole training set.

    The metrics are `"accuracy"`, `"l2"` (the chosen strength), and, if there are several strengths,
    `"validation_accuracy"`.

    Attributes:
        solver: `"lbfgs"` for logistic regression, or `"ridge"` for least squares in closed form, as in `fewshot`.
        l2: Strength of the regularization, or several strengths from which the best is chosen. The default depends on
            the solver.
    """

    name: ClassVar = "linear_probe"
    metrics: ClassVar = {"l2": Metric("l2")}
    solver: str = "lbfgs"
    l2: float | Sequence[float] | None = None

    def __post_init__(self):
        super().__post_init__()
        checks.choice("solver", self.solver, SOLVERS)
        # Least squares divides by the strength. Logistic regression also works with a strength of 0.
        zero = self.solver == "lbfgs"
        self.l2 = L2[self.solver] if self.l2 is None else checks.finite_numbers("l2", self.l2, zero=zero)

    def evaluate(
        self, train: Labeled, test: Labeled, num_classes: int, validation: Labeled | None = None
    ) -> dict[str, float]:
        """Return the accuracy on `test` after training on both the training and the validation examples.

        The validation examples determine the strength. By default, a tenth of the training set is used for validation.
        """
        features, train_labels = check_examples(train, num_classes, "the training set")
        test_features, test_labels = check_examples(test, num_classes, "the test set")
        if validation is None:
            order = np.random.default_rng(0).permutation(len(features))
            held_out, fitted = np.split(order, [max(1, round(HELD_OUT * len(features)))])
            validation = features[held_out], train_labels[held_out]
            features, train_labels = features[fitted], train_labels[fitted]
        validation_features, validation_labels = check_examples(validation, num_classes, "the validation set")

        metrics, strengths = {}, cast(tuple[float, ...], self.l2)
        best = strengths[0]
        if len(strengths) > 1:
            fits = _fits(self.solver, features, train_labels, num_classes, strengths)
            accuracies = {l2: float((predict(validation_features) == validation_labels).mean()) for l2, predict in fits}
            best = max(accuracies, key=lambda strength: accuracies[strength])
            metrics["validation_accuracy"] = accuracies[best]
        everything = np.concatenate([features, validation_features]), np.concatenate([train_labels, validation_labels])
        ((_, predict),) = _fits(self.solver, *everything, num_classes, [best])
        return {"accuracy": float((predict(test_features) == test_labels).mean()), "l2": float(best), **metrics}


def _fits(
    solver: str, features: np.ndarray, labels: np.ndarray, num_classes: int, strengths: Sequence[float]
) -> Iterator[tuple[float, Callable[[np.ndarray], np.ndarray]]]:
    """Yield each strength, in descending order, with the fitted function from features to classes."""
    ridge, start = None, None
    logistic = LinearFit(features[None], np.eye(num_classes)[labels], softmax_loss) if solver == "lbfgs" else None
    for strength in track(sorted(strengths, reverse=True), "Linear probe", unit="fits"):
        if logistic is None:
            ridge = ridge or RidgeClassifier(features, labels, num_classes)
            yield strength, functools.partial(ridge.predict, l2=strength)
        else:  # start from the nearby solution of the stronger regularization
            start = logistic.solve(strength, start=start)
            yield strength, functools.partial(_classes, *logistic.kernel_and_bias(start))


def _classes(kernel: np.ndarray, bias: np.ndarray, features: np.ndarray) -> np.ndarray:
    return (features @ kernel + bias).argmax(axis=1)
