"""Context of an accuracy: its confidence interval, and baselines for comparison."""

import math
from typing import Any

import numpy as np
from scipy import special

from keras_vit.util.formatting import percent

SIGNIFICANCE = 0.05
_Z2 = float(special.ndtri(1 - SIGNIFICANCE / 2) ** 2)


def wilson_interval(correct: int, examples: int) -> tuple[float, float]:
    """Return the 95% confidence interval of an accuracy (Wilson 1927)."""
    middle = (correct + _Z2 / 2) / (examples + _Z2)
    half = math.sqrt(_Z2 * (correct * (examples - correct) / examples + _Z2 / 4)) / (examples + _Z2)
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def examples_for(accuracy: float) -> int:
    """Return how many examples, all of them correct, give an interval with the lower bound `accuracy` < 1."""
    return math.ceil(_Z2 * accuracy / (1 - accuracy))


def in_context(correct: int, examples: int, class_examples: np.ndarray, confusion: np.ndarray | None) -> dict[str, Any]:
    """Return the numbers to report with an accuracy.

    Args:
        correct: Number of images whose top-1 prediction is correct.
        examples: Number of images.
        class_examples: Number of images of each class, `[C]`.
        confusion: Number of images `[true class, predicted class]`, or None for images with several labels. Images
            whose scores are not finite may be missing.

    Returns:
        A dictionary; see `ClassificationMetrics.result`. `remark` is None unless a trivial prediction is as accurate.
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
    """Return a sentence if an accuracy is not significantly above the fraction of the largest class, else None."""
    # Probability of at least `correct` correct predictions if each prediction is correct with probability `largest`.
    p = float(special.betainc(correct, examples - correct + 1, largest)) if correct else 1.0
    if p <= SIGNIFICANCE:
        return None
    how = "Not significantly better" if correct / examples > largest else "Not better"
    return (
        f"{how} than always predicting the largest class, which is right for {percent(largest, 2)} of the images "
        f"(p = {p:.2g}, one-sided exact binomial test)."
    )


def lines(confusion: np.ndarray) -> list[str]:
    """Return the confidence interval and baselines of an accuracy as text, given its confusion matrix."""
    examples = int(confusion.sum())
    found = in_context(int(np.trace(confusion)), examples, confusion.sum(axis=1), confusion)
    remark = found.pop("remark")
    low, high = (percent(found.pop(f"accuracy_{end}"), 2) for end in ("low", "high"))
    texts = (f"{name.replace('_', ' ').replace('f1', 'F1')} {percent(value, 2)}" for name, value in found.items())
    return [f"95% confidence interval {low} to {high}", ", ".join(texts), *([remark] if remark else [])]
