"""Accuracy of the nearest neighbours among frozen features."""

from collections.abc import Iterable

import numpy as np

from keras_vit.evaluators import arguments
from keras_vit.evaluators.features import check_labels

NEIGHBOURS = (1, 5, 10, 20, 50, 100, 200)
TEMPERATURE = 0.07
_ROWS = 1_024  # test examples compared at a time, to bound the memory


def check(neighbours: int | Iterable[int] = NEIGHBOURS, temperature: float = TEMPERATURE) -> dict:
    """Returns the options of `evaluate` by name, after checking them.

    Raises:
        ValueError: If a number is out of range.
    """
    return {
        "neighbours": arguments.counts("neighbours", neighbours),
        "temperature": arguments.positive("temperature", temperature),
    }


def evaluate(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    num_classes: int,
    neighbours: int | Iterable[int] = NEIGHBOURS,
    temperature: float = TEMPERATURE,
) -> dict[str, float]:
    """Accuracy of a vote of the nearest training examples.

    Nearness is the cosine of two feature vectors; each neighbour votes with `exp(cosine / temperature)`.

    Args:
        train: Features `[N, D]` and labels `[N]`.
        test: Features and labels of the test set.
        num_classes: Number of classes.
        neighbours: Numbers of neighbours, or one; those beyond the size of the training set are left out.
        temperature: The smaller, the more the nearest decide.

    Returns:
        For each number of neighbours k, the accuracy as `"k20"`.

    References:
        Wu et al. 2018, "Unsupervised Feature Learning via Non-Parametric Instance Discrimination", section 3.4
    """
    neighbours, temperature = check(neighbours, temperature).values()
    train_labels = check_labels(train[1], num_classes, "the training set")
    test_labels = check_labels(test[1], num_classes, "the test set")
    counts = sorted({k for k in neighbours if k <= len(train_labels)})
    if not counts:
        raise ValueError(f"No number of neighbours lies in [1, {len(train_labels)}]. Received: {neighbours}.")
    keys, queries = _normalized(train[0]), _normalized(test[0])
    correct = np.zeros(len(counts), np.int64)
    for start in range(0, len(queries), _ROWS):
        cosines = queries[start : start + _ROWS] @ keys.T  # [B, N]
        nearest = _largest(cosines, counts[-1])  # [B, k], the nearest first
        similarity = np.take_along_axis(cosines, nearest, axis=1)
        # The largest of each row is subtracted: small temperatures would overflow otherwise.
        votes = np.exp((similarity - similarity[:, :1]) / temperature)
        truth = test_labels[start : start + _ROWS]
        rows = np.arange(len(truth))[:, None]
        for index, count in enumerate(counts):
            totals = np.zeros((len(truth), num_classes))
            np.add.at(totals, (rows, train_labels[nearest[:, :count]]), votes[:, :count])
            correct[index] += int((totals.argmax(axis=1) == truth).sum())
    return {f"k{count}": float(hits / len(test_labels)) for count, hits in zip(counts, correct, strict=True)}


def _normalized(features: np.ndarray) -> np.ndarray:
    features = np.asarray(features, np.float32)
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Indices `[B, count]` of the largest values of each row `[B, N]`, in falling order; of equals, the first."""
    if count < values.shape[1]:
        some = np.sort(np.argpartition(-values, count - 1, axis=1)[:, :count], axis=1)
    else:
        some = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    order = np.argsort(-np.take_along_axis(values, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, order, axis=1)
