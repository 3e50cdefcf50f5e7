"""Metrics: the name, unit and direction of improvement of reported numbers, and the scores of a segmentation."""

import dataclasses
from typing import Any

import numpy as np

from keras_vit.util import formatting


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number that training or an evaluation reports.

    Attributes:
        name: Name, such as `"accuracy"`.
        larger_is_better: Whether larger values are better.
        unit: `"%"` for a fraction to show in percent, or any other unit to write after the number.

    Example:
    >>> Metric("accuracy", unit="%").text(0.75), Metric("loss", larger_is_better=False, unit="nats").text(0.3125)
    ('75.00%', '0.3125 nats')
    """

    name: str
    larger_is_better: bool = True
    unit: str = ""

    def text(self, value: float | None, digits: int = 4) -> str:
        """Format a value with its unit: a fraction in percent, other numbers with `digits` significant digits."""
        if self.unit == "%" and isinstance(value, float):
            return formatting.percent(value, 2)
        shown = formatting.number(value, digits)
        return f"{shown} {self.unit}" if value is not None and self.unit not in ("", "%") else shown

    def goodness(self, value: float) -> float:
        """Return a number that is larger for a better value."""
        return value if self.larger_is_better else -value


def mean_average_precision(scores: Any, targets: Any) -> float:
    """Return the mean of the average precisions of the classes with examples, as in scikit-learn.

    `scores` are logits or probabilities, `[N, classes]`, and `targets` are bools, `[N, classes]`. Equal scores have the
    same rank. A row with a score that is not finite has the lowest rank.
    """
    scores, targets, precisions = np.asarray(scores, np.float64), np.asarray(targets), []
    scores = np.where(np.isfinite(scores).all(axis=-1, keepdims=True), scores, -np.inf)
    for column in np.flatnonzero(targets.any(axis=0)):
        order = np.argsort(-scores[:, column], kind="stable")
        ranked = scores[order, column]
        ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # of equal scores
        hits = np.cumsum(targets[order, column])[ends]
        precisions.append(np.diff(hits, prepend=0) @ (hits / (ends + 1)) / hits[-1])
    return float(np.mean(precisions)) if precisions else float("nan")


def segmentation_scores(confusion: Any, ignore: int = 255) -> dict[str, Any]:
    """Return the scores of a segmentation, computed as in mmsegmentation.

    mmsegmentation gives an ignored class that is predicted an intersection over union of 0. Here the class is left out.

    Args:
        confusion: Number of pixels, `[true classes, predicted classes]`.
        ignore: Number of a class that is ignored; 255 for no class.

    Returns:
        A dictionary with the keys:

        - `"iou"`, `"miou"`: Intersection over union of each class, `[classes]`, and the mean. An ignored
          class, and a class with no true and no predicted pixels, have the value NaN, which the mean ignores. The mean
          is therefore 1.0 if there are only pixels of the background, and all are predicted as background.
        - `"accuracy"`, `"mean_accuracy"`: Fraction of each class's pixels that are predicted correctly, and the mean.
        - `"pixel_accuracy"`: Fraction of all pixels that are predicted correctly.
    """
    counts = np.asarray(confusion, np.float64)
    right, true, predicted = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    nan = np.full_like(right, np.nan)
    kept = (true + predicted > 0) & (np.arange(len(right)) != (-1 if ignore == 255 else ignore))
    iou = np.divide(right, true + predicted - right, out=nan.copy(), where=kept)
    accuracy = np.divide(right, true, out=nan, where=true > 0)
    means = {"miou": iou[kept], "mean_accuracy": accuracy[true > 0]}
    found = {name: float(values.mean()) if values.size else float("nan") for name, values in means.items()}
    share = float(right.sum() / true.sum()) if true.sum() else float("nan")
    return {**found, "pixel_accuracy": share, "iou": iou, "accuracy": accuracy}


def is_correct(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return for each image whether its predicted class `[N]` is its label `[N]`, or one of its multi-hot labels."""
    if np.ndim(labels) == 2:
        return np.asarray(labels)[np.arange(len(predicted)), predicted] > 0
    return predicted == np.asarray(labels)


def regression_errors(true: np.ndarray, predicted: np.ndarray) -> dict[str, np.ndarray]:
    """Return the errors of each value, `"mae"`, `"rmse"` and `"r2"`, float64 `[k]`. All values are `[N, k]`.

    If a value is the same for all images, its R2 is 1 if every prediction is exact, else 0. The errors of a value are
    not finite if one of its predictions is not finite. `"r2"` of a single image is NaN.
    """
    true, predicted = np.asarray(true, np.float64), np.asarray(predicted, np.float64)
    if true.ndim != 2 or true.shape != predicted.shape or not len(true):
        raise ValueError(
            f"True and predicted values must have the same shape [N, k]. Received: {true.shape} and {predicted.shape}."
        )
    squared = (predicted - true) ** 2
    residual, total = squared.sum(axis=0), ((true - true.mean(axis=0)) ** 2).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        r2 = np.where(total > 0, 1 - residual / total, np.where(residual > 0, 0.0, 1.0 - residual))
    return {
        "mae": np.abs(predicted - true).mean(axis=0),
        "rmse": np.sqrt(squared.mean(axis=0)),
        "r2": r2 if len(true) > 1 else np.full_like(r2, np.nan),
    }
