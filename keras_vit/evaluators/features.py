"""Collecting what a network makes of a whole split: features or scores, with their labels."""

from collections.abc import Callable, Iterable

import numpy as np


def collect(function: Callable, batches: Iterable[dict]) -> tuple[np.ndarray, np.ndarray]:
    """Runs a function over one pass of batches and drops the rows that are padding.

    Args:
        function: Takes images (float32 `[B, H, W, C]`, ready for the model) and returns `[B, D]`.
        batches: Yields dictionaries with "image", "label" and, where rows are padding, "mask".

    Returns:
        Outputs float32 `[N, D]` and labels `[N]`, or `[N, classes]` of multi-label data.

    Raises:
        ValueError: If there is no example, or the outputs are not `[B, D]`.
    """
    outputs, labels = [], []
    for batch in batches:
        values, truth = np.asarray(function(batch["image"])), np.asarray(batch["label"])
        if values.ndim != 2 or len(values) != len(truth):
            raise ValueError(f"A vector for each image is expected, [{len(truth)}, D]. Received: shape {values.shape}.")
        kept = np.asarray(batch["mask"]) > 0 if "mask" in batch else np.ones(len(truth), bool)
        outputs.append(values[kept].astype(np.float32))
        labels.append(truth[kept])
    if not sum(map(len, labels)):
        raise ValueError("There is nothing to evaluate: no batch held an example with mask 1.")
    return np.concatenate(outputs), np.concatenate(labels)


def check_labels(labels: np.ndarray, num_classes: int, what: str) -> np.ndarray:
    """Returns labels as int64 `[N]`, after checking that there is one class an example and each exists."""
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise ValueError(f"{what} needs one class an example, labels [N]. Received: shape {labels.shape}.")
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if len(wrong):
        raise ValueError(f"The labels of {what} must lie in [0, {num_classes}). Received: {wrong[0]}.")
    return labels.astype(np.int64)


def standardization(features: np.ndarray, epsilon: float = 1e-5) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation plus `epsilon` of each feature, float64 `[1, D]`."""
    features = features.astype(np.float64)
    return features.mean(axis=0, keepdims=True), features.std(axis=0, keepdims=True) + epsilon
