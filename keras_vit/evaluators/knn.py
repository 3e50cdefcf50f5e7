"""Accuracy of k nearest neighbors on frozen features."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import ClassVar, cast

import numpy as np

from keras_vit.evaluators.dataset import Labeled
from keras_vit.evaluators.evaluation import register
from keras_vit.evaluators.features import FeatureEvaluator, check_examples
from keras_vit.util import checks
from keras_vit.util.progress import track

_BLOCK = 2**25  # cosines that are computed at a time, to limit memory


@register
@dataclasses.dataclass(kw_only=True)
class Knn(FeatureEvaluator):
    """Accuracy of a weighted vote of the nearest training examples.

    The nearest examples have the largest cosine similarity of features. Each votes with the weight
    `exp(cosine / temperature)`. The metric `"k20"` is the accuracy with 20 neighbors.

    Attributes:
        neighbors: Number of neighbors, or several numbers. Numbers above the size of the training set are skipped.
        temperature: Temperature of the votes. A lower temperature gives more weight to the nearest neighbors.

    References:
        Wu et al. 2018, "Unsupervised Feature Learning via Non-Parametric Instance Discrimination", section 3.4
    """

    name: ClassVar = "knn"
    neighbors: int | Sequence[int] = (1, 5, 10, 20, 50, 100, 200)
    temperature: float = 0.07

    def __post_init__(self):
        super().__post_init__()
        self.neighbors = checks.positive_ints("neighbors", self.neighbors)
        self.temperature = checks.finite_number("temperature", self.temperature)

    def evaluate(self, train: Labeled, test: Labeled, num_classes: int) -> dict[str, float]:
        train_features, train_labels = check_examples(train, num_classes, "the training set")
        test_features, test_labels = check_examples(test, num_classes, "the test set")
        neighbors = cast(tuple[int, ...], self.neighbors)
        counts = sorted({k for k in neighbors if k <= len(train_labels)})
        if not counts:
            raise ValueError(f"No number of neighbors is in [1, {len(train_labels)}]. Received: {neighbors=}.")
        correct, first = np.zeros(len(counts), np.int64), 0
        for nearest, similarity in nearest_neighbors(test_features, train_features, counts[-1]):  # [B, k]
            # Subtract the largest similarity of each row, because small temperatures would overflow otherwise.
            votes = np.exp((similarity - similarity[:, :1]) / self.temperature)
            truth = test_labels[first : first + len(nearest)]
            rows, first = np.arange(len(truth))[:, None], first + len(truth)
            for index, count in enumerate(counts):
                totals = np.zeros((len(truth), num_classes))
                np.add.at(totals, (rows, train_labels[nearest[:, :count]]), votes[:, :count])
                correct[index] += int((totals.argmax(axis=1) == truth).sum())
        return {f"k{count}": float(hits / len(test_labels)) for count, hits in zip(counts, correct, strict=True)}


def nearest_neighbors(queries: np.ndarray, keys: np.ndarray, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Find the nearest keys of queries by the cosine similarity of their features.

    Args:
        queries: Features, `[M, D]`.
        keys: Features, `[N, D]`.
        count: Number of neighbors, at most `N`.

    Yields:
        Indices and cosine similarities of the nearest keys, both `[B, count]`, in descending order, for `B` consecutive
        queries at a time.
    """
    keys, queries = _normalized(keys), _normalized(queries)
    rows = max(1, _BLOCK // len(keys))
    for start in track(range(0, len(queries), rows), "Nearest neighbors", unit="parts"):
        cosines = queries[start : start + rows] @ keys.T  # [B, N]
        nearest = _largest(cosines, count)
        yield nearest, np.take_along_axis(cosines, nearest, axis=1)


def _normalized(features: np.ndarray) -> np.ndarray:
    features = np.asarray(features, np.float32)
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the indices `[B, count]` of the largest values in each row `[B, N]`, in descending order.

    Among equal values, the first value counts as the largest.
    """
    if count < values.shape[1]:
        some = np.sort(np.argpartition(-values, count - 1, axis=1)[:, :count], axis=1)
    else:
        some = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    order = np.argsort(-np.take_along_axis(values, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, order, axis=1)
