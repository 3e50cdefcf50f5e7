"""How far an accuracy can be trusted: the values to compare it with, and its confidence interval."""

import math
from typing import Any

import numpy as np
from scipy import special

SIGNIFICANCE = 0.05


def wilson_interval(correct: int, examples: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of an accuracy.

    References:
        Wilson 1927, "Probable inference, the law of succession, and statistical inference"
    """
    z2 = special.ndtri(1 - SIGNIFICANCE / 2) ** 2
    middle = (correct + z2 / 2) / (examples + z2)
    half = math.sqrt(z2 * (correct * (examples - correct) / examples + z2 / 4)) / (examples + z2)
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def in_context(correct: int, examples: int, class_examples: np.ndarray, confusion: np.ndarray | None) -> dict[str, Any]:
    """Return the numbers that belong beside an accuracy, by name, and what they imply as `"remark"`, or None.

    Args:
        correct: Number of images whose best class is right.
        examples: Number of images.
        class_examples: Number of images of each class, `[C]`.
        confusion: Counts `[true class, predicted class]`; None for images of several classes. Images whose scores are
            not finite may be missing.

    Returns:
        `accuracy_low` and `accuracy_high` (confidence interval), `chance` (accuracy of a random class),
        `largest_class` (accuracy of the most frequent class for all images), `balanced_accuracy` (mean of the classes'
        accuracies) and `macro_f1` (mean of the classes' F1 scores; both None without a confusion), and `remark`.
    """
    low, high = wilson_interval(correct, examples)
    largest = float(class_examples.max() / examples)
    chance = float(class_examples.sum() / (examples * len(class_examples)))
    numbers = {"accuracy_low": low, "accuracy_high": high, "chance": chance, "largest_class": largest}
    balanced, f1 = None, None
    if confusion is not None:
        right, predicted = np.diag(confusion), confusion.sum(axis=0)
        balanced = float(np.mean((right / np.maximum(class_examples, 1))[class_examples > 0]))
        counted = class_examples + predicted
        f1 = float(np.mean((2 * right / np.maximum(counted, 1))[counted > 0]))
    return {**numbers, "balanced_accuracy": balanced, "macro_f1": f1, "remark": _remark(correct, examples, largest)}


def _remark(correct: int, examples: int, largest: float) -> str | None:
    """Return a sentence if an exact binomial test finds an accuracy not above the share of the largest class."""
    # The probability of as many right answers, or more, where each one is right with the probability `largest`.
    p = float(special.betainc(correct, examples - correct + 1, largest)) if correct else 1.0
    if p <= SIGNIFICANCE:
        return None
    how = "Not significantly better" if correct / examples > largest else "Not better"
    return (
        f"{how} than always predicting the largest class, which is right for {largest:.2%} of the images "
        f"(p = {p:.2g}, one-sided exact binomial test)."
    )
