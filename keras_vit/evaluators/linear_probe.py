"""Accuracy of a linear classifier on frozen features, its regularisation chosen on held-out examples."""

from collections.abc import Iterable

import numpy as np

from keras_vit import _checks
from keras_vit.evaluators import arguments, lbfgs
from keras_vit.evaluators.features import check_labels, standardization
from keras_vit.evaluators.fewshot import RidgeClassifier

SOLVERS = ("lbfgs", "ridge")
L2 = {"lbfgs": tuple(10.0**k for k in range(-6, 2)), "ridge": tuple(2.0**k for k in range(-4, 21, 4))}
HELD_OUT = 0.1
MAX_ITERATIONS = 200


class LogisticRegression:
    """Multinomial logistic regression on standardised features, by L-BFGS from zero weights.

    Minimises the mean cross-entropy plus `l2 / 2` times the sum of the squared weights, without the biases.

    Args:
        features: `[N, D]`.
        labels: Class numbers, `[N]`.
        num_classes: Number of classes `C`.
        l2: Strength of the regularisation.
        max_iterations: Most iterations of L-BFGS.
        start: Another fit, to begin at its weights.
    """

    def __init__(self, features, labels, num_classes, l2, max_iterations=MAX_ITERATIONS, start=None):
        labels = check_labels(labels, num_classes, "the training set")
        self.mean, self.deviation = standardization(features)
        x = self._inputs(features)  # [N, D]
        y = np.eye(num_classes)[labels]  # [N, C]
        shape = (x.shape[1] + 1, num_classes)
        first = np.zeros(shape) if start is None else start.parameters
        best = lbfgs.minimize(
            lambda flat: self._loss_and_gradient(flat.reshape(shape), x, y, l2), first.ravel(), max_iterations
        )
        self.parameters = best.reshape(shape)  # [D + 1, C], the last row is the bias

    @staticmethod
    def _loss_and_gradient(parameters, x, y, l2):
        weights, bias = parameters[:-1], parameters[-1]
        logits = x @ weights + bias  # [N, C]
        logits -= logits.max(axis=1, keepdims=True)
        log_totals = np.log(np.exp(logits).sum(axis=1, keepdims=True))
        loss = -(y * (logits - log_totals)).sum() / len(x) + 0.5 * l2 * (weights**2).sum()
        error = (np.exp(logits - log_totals) - y) / len(x)  # [N, C]
        return loss, np.concatenate([x.T @ error + l2 * weights, error.sum(axis=0, keepdims=True)]).ravel()

    def _inputs(self, features):
        return (np.asarray(features, np.float64) - self.mean) / self.deviation

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Class numbers `[N]` of features `[N, D]`."""
        return (self._inputs(features) @ self.parameters[:-1] + self.parameters[-1]).argmax(axis=1)


def check(
    solver: str = "lbfgs", l2: Iterable[float] | float | None = None, max_iterations: int = MAX_ITERATIONS
) -> dict:
    """Returns the options of `evaluate` by name, after checking them.

    Raises:
        ValueError: If there is no such solver, or a number is out of range.
    """
    _checks.choice("solver", solver, SOLVERS)
    # Least squares divide by the strength; the logistic loss does without.
    strengths = L2[solver] if l2 is None else arguments.strengths("l2", l2, zero=solver == "lbfgs")
    return {
        "solver": solver,
        "l2": strengths,
        "max_iterations": _checks.positive_int("max_iterations", max_iterations),
    }


def evaluate(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    num_classes: int,
    solver: str = "lbfgs",
    l2: Iterable[float] | float | None = None,
    validation: tuple[np.ndarray, np.ndarray] | None = None,
    max_iterations: int = MAX_ITERATIONS,
) -> dict[str, float]:
    """Accuracy of a linear classifier trained on all of the training set.

    Args:
        train: Features `[N, D]` and labels `[N]`.
        test: Features and labels of the test set.
        num_classes: Number of classes.
        solver: "lbfgs", logistic regression; or "ridge", least squares in closed form as in `fewshot`.
        l2: Strengths of the regularisation to choose from; None takes the solver's own.
        validation: Features and labels on which the strength is chosen; None holds back a tenth of the training set.
        max_iterations: Most iterations of L-BFGS for each strength.

    Returns:
        `"accuracy"` on the test set after training on training and validation examples together, `"l2"` as chosen, and
        `"validation_accuracy"` (absent if there was nothing to choose).
    """
    solver, strengths, max_iterations = check(solver, l2, max_iterations).values()
    train_labels = check_labels(train[1], num_classes, "the training set")
    test_labels = check_labels(test[1], num_classes, "the test set")
    features = np.asarray(train[0])
    if validation is None:
        order = np.random.default_rng(0).permutation(len(features))
        held_out = max(1, round(HELD_OUT * len(features)))
        fitted, chosen_on = order[held_out:], order[:held_out]
        parts = (features[fitted], train_labels[fitted]), (features[chosen_on], train_labels[chosen_on])
        everything = features, train_labels
    else:
        validation_labels = check_labels(validation[1], num_classes, "the validation set")
        parts = (features, train_labels), (np.asarray(validation[0]), validation_labels)
        everything = tuple(np.concatenate(pair) for pair in zip(*parts, strict=True))

    metrics = {}
    best = strengths[0]
    if len(strengths) > 1:
        accuracies = _sweep(*parts, num_classes, solver, strengths, max_iterations)
        best = max(accuracies, key=accuracies.get)
        metrics["validation_accuracy"] = accuracies[best]
    predict = _fit(*everything, num_classes, solver, best, max_iterations)
    return {"accuracy": float((predict(test[0]) == test_labels).mean()), "l2": float(best), **metrics}


def _sweep(fitted, chosen_on, num_classes, solver, strengths, max_iterations) -> dict[float, float]:
    """Validation accuracy of each strength; of equals the stronger comes first."""
    accuracies, previous = {}, None
    ridge = RidgeClassifier(*fitted, num_classes) if solver == "ridge" else None
    for strength in sorted(strengths, reverse=True):
        if ridge is not None:
            predicted = ridge.predict(chosen_on[0], strength)
        else:  # each fit starts at the solution of the stronger regularisation, which is near
            previous = LogisticRegression(*fitted, num_classes, strength, max_iterations, previous)
            predicted = previous.predict(chosen_on[0])
        accuracies[strength] = float((predicted == chosen_on[1]).mean())
    return accuracies


def _fit(features, labels, num_classes, solver, strength, max_iterations):
    if solver == "ridge":
        classifier = RidgeClassifier(features, labels, num_classes)
        return lambda x: classifier.predict(np.asarray(x), strength)
    return LogisticRegression(features, labels, num_classes, strength, max_iterations).predict
