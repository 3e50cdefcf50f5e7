"""Few-shot accuracy by regularised least squares on frozen features, in closed form."""

from collections.abc import Iterable

import numpy as np

from keras_vit.evaluators import arguments
from keras_vit.evaluators.features import check_labels, standardization

BIAS = 100.0  # a constant feature so large that its weight, the bias, is hardly regularised
L2 = 2.0**10
SHOTS = (1, 5, 10, 25)


class RidgeClassifier:
    """Least squares from features to targets -1 and 1, solved at once for any strength of the regularisation.

    Features are whitened one by one, by the mean and deviation of the training set, and a constant is added to them.

    Args:
        features: `[N, D]`.
        labels: Class numbers, `[N]`.
        num_classes: Number of classes `C`.

    References:
        Appendix B.1.1 of "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929
    """

    def __init__(self, features: np.ndarray, labels: np.ndarray, num_classes: int):
        labels = check_labels(labels, num_classes, "the training set")
        self.mean, self.deviation = standardization(features)
        x = self._inputs(features)  # [N, D + 1]
        y = 2.0 * np.eye(num_classes)[labels] - 1.0  # [N, C]
        # (X'X + l2)^-1 X'y, or the same as X'(XX' + l2)^-1 y, by the smaller of both symmetric matrices.
        if len(x) >= x.shape[1]:
            self.eigenvalues, vectors = np.linalg.eigh(x.T @ x)  # [D + 1], [D + 1, D + 1]
            self.left, self.right = vectors, vectors.T @ (x.T @ y)
        else:
            self.eigenvalues, vectors = np.linalg.eigh(x @ x.T)  # [N], [N, N]
            self.left, self.right = x.T @ vectors, vectors.T @ y

    def _inputs(self, features: np.ndarray) -> np.ndarray:
        white = (features.astype(np.float64) - self.mean) / self.deviation
        return np.pad(white, ((0, 0), (0, 1)), constant_values=BIAS)

    def predict(self, features: np.ndarray, l2: float) -> np.ndarray:
        """Class numbers `[N]` of features `[N, D]`, with the regularisation `l2` > 0."""
        if l2 <= 0:
            raise ValueError(f"l2 must be positive. Received: l2={l2}.")
        weights = (self.left / (self.eigenvalues + l2)) @ self.right  # [D + 1, C]
        return (self._inputs(features) @ weights).argmax(axis=1)


def shots_of(labels: np.ndarray, shots: int, num_classes: int, seed: int) -> np.ndarray:
    """Indices of the first `shots` examples of each class, in an order that depends on `seed`."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:shots] for c in range(num_classes)])


def check(shots: int | Iterable[int] = SHOTS, l2: float = L2, seeds: int | Iterable[int] = 3) -> dict:
    """Returns the options of `evaluate` by name, after checking them.

    Raises:
        ValueError: If a number is out of range.
    """
    return {
        "shots": arguments.counts("shots", shots),
        "l2": arguments.positive("l2", l2),
        "seeds": arguments.seeds(seeds),
    }


def evaluate(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    num_classes: int,
    shots: int | Iterable[int] = SHOTS,
    l2: float = L2,
    seeds: int | Iterable[int] = 3,
) -> dict[str, float]:
    """Accuracy on the test set from few examples of each class.

    Args:
        train: Features `[N, D]` and labels `[N]` to choose the examples from.
        test: Features and labels of the test set.
        num_classes: Number of classes.
        shots: Numbers of examples a class, or one; a class that has fewer gives all it has.
        l2: Strength of the regularisation.
        seeds: Number of draws, 0, 1, 2 ..., or the seeds themselves.

    Returns:
        For each number of shots `"10shot"`, the mean over the draws, and `"10shot_std"`, their standard deviation.
    """
    options = check(shots, l2, seeds)
    train_features, train_labels = np.asarray(train[0]), check_labels(train[1], num_classes, "the training set")
    test_features, test_labels = np.asarray(test[0]), check_labels(test[1], num_classes, "the test set")
    accuracies: dict[int, list[float]] = {count: [] for count in options["shots"]}
    for seed in options["seeds"]:
        for count, results in accuracies.items():
            chosen = shots_of(train_labels, count, num_classes, seed)
            classifier = RidgeClassifier(train_features[chosen], train_labels[chosen], num_classes)
            results.append(float((classifier.predict(test_features, options["l2"]) == test_labels).mean()))
    metrics = {}
    for count, results in accuracies.items():
        metrics[f"{count}shot"] = float(np.mean(results))
        metrics[f"{count}shot_std"] = float(np.std(results))
    return metrics
