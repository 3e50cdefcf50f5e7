"""Few-shot accuracy of regularized least squares on frozen features, in closed form."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, cast

import numpy as np

from keras_vit.evaluators.dataset import Labeled
from keras_vit.evaluators.evaluation import register
from keras_vit.evaluators.features import FeatureEvaluator, check_examples, standardization
from keras_vit.util import checks
from keras_vit.util.metrics import Metric
from keras_vit.util.progress import track

BIAS = 100.0  # constant feature, so large that its weight (the bias) is hardly regularized


class RidgeClassifier:
    """Regularized least squares from finite features `[N, D]` and labels, int64 `[N]`, to targets -1 and 1.

    Features are standardized by the mean and standard deviation of the training set, and a constant feature is added.
    A single decomposition gives the solution for any strength of the regularization.

    References:
        Appendix B.1.1 of "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929
    """

    def __init__(self, features: np.ndarray, labels: np.ndarray, num_classes: int):
        self.mean, self.deviation = standardization(features)
        x = self._inputs(features)  # [N, D + 1]
        y = 2.0 * np.eye(num_classes)[labels] - 1.0  # [N, C]
        # (X'X + l2)^-1 X'y equals X'(XX' + l2)^-1 y. The smaller of both symmetric matrices is decomposed.
        if len(x) >= x.shape[1]:
            self.eigenvalues, vectors = np.linalg.eigh(x.T @ x)  # [D + 1], [D + 1, D + 1]
            self.left, self.right = vectors, vectors.T @ (x.T @ y)
        else:
            self.eigenvalues, vectors = np.linalg.eigh(x @ x.T)  # [N], [N, N]
            self.left, self.right = x.T @ vectors, vectors.T @ y

    def _inputs(self, features: np.ndarray) -> np.ndarray:
        standardized = (features.astype(np.float64) - self.mean) / self.deviation
        return np.pad(standardized, ((0, 0), (0, 1)), constant_values=BIAS)

    def predict(self, features: np.ndarray, l2: float) -> np.ndarray:
        """Return the predicted classes `[N]` of features `[N, D]`, with the regularization `l2` > 0."""
        weights = (self.left / (self.eigenvalues + l2)) @ self.right  # [D + 1, C]
        return (self._inputs(features) @ weights).argmax(axis=1)


@register
@dataclasses.dataclass(kw_only=True)
class FewShot(FeatureEvaluator):
    """Accuracy of `RidgeClassifier` after training on a few examples per class.

    For ten shots, `"10shot"` is the mean accuracy over several draws of the examples, and `"10shot_std"` the standard
    deviation.

    Attributes:
        shots: Number of examples per class, or several numbers. A class with fewer examples contributes all its
            examples.
        l2: Strength of the regularization.
        seeds: Number of draws.
    """

    name: ClassVar = "fewshot"
    shots: int | Sequence[int] = (1, 5, 10, 25)
    l2: float = 2.0**10
    seeds: int = 3

    def __post_init__(self):
        super().__post_init__()
        self.shots = checks.positive_ints("shots", self.shots)
        self.l2 = checks.finite_number("l2", self.l2)
        self.seeds = checks.positive_int("seeds", self.seeds)

    def metric(self, key: str) -> Metric:
        return Metric(key, larger_is_better=not key.endswith("_std"), unit="%")

    def evaluate(self, train: Labeled, test: Labeled, num_classes: int) -> dict[str, float]:
        train_features, train_labels = check_examples(train, num_classes, "the training set")
        test_features, test_labels = check_examples(test, num_classes, "the test set")
        metrics: dict[str, float] = {}
        for count in cast(tuple[int, ...], self.shots):
            accuracies = []
            for seed in track(range(self.seeds), f"Few-shot, {count} per class", unit="fits"):
                chosen = draw(train_labels, count, num_classes, seed)
                classifier = RidgeClassifier(train_features[chosen], train_labels[chosen], num_classes)
                accuracies.append((classifier.predict(test_features, self.l2) == test_labels).mean())
            metrics |= {f"{count}shot": float(np.mean(accuracies)), f"{count}shot_std": float(np.std(accuracies))}
        return metrics


def draw(labels: np.ndarray, shots: int, num_classes: int, seed: int) -> np.ndarray:
    """Return the indices of up to `shots` random examples of each class, drawn with `seed`."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:shots] for c in range(num_classes)])
