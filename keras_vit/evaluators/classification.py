"""Accuracy, loss, calibration and confusion matrix of a classifier."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np
from scipy import special

from keras_vit.evaluators import confidence
from keras_vit.evaluators.class_matching import in_model_classes
from keras_vit.evaluators.evaluation import COUNTS, Context, Result, SplitEvaluator, register
from keras_vit.outputs import CLASSIFICATION, of
from keras_vit.util import checks
from keras_vit.util.metrics import Metric, mean_average_precision

CALIBRATION_BINS = 15
# Bounds for logarithms of float32 probabilities: 0 counts as `_TINY`, and 1 counts as 1 - `_EPSILON`.
_TINY = np.finfo(np.float32).tiny
_EPSILON = np.finfo(np.float32).epsneg


@register
@dataclasses.dataclass(kw_only=True)
class Classification(SplitEvaluator):
    """Accuracy with baselines, top-5 accuracy, loss and calibration.

    With several classes per image, the mean average precision replaces the accuracies.
    """

    name: ClassVar = "classification"
    outputs: ClassVar = CLASSIFICATION
    label_kinds: ClassVar = ("class", "classes")
    metrics: ClassVar = {
        **COUNTS,
        "loss": Metric("loss", larger_is_better=False, unit="nats"),
        "ece": Metric("ece", larger_is_better=False),
    }

    def check(self, context: Context) -> None:
        opened = in_model_classes(context.predictor, self.open(context))
        if of(opened.label_kind).is_independent and not of(context.output).is_independent:
            raise ValueError("Several labels per image need a model that was trained with the sigmoid loss.")

    def measure(self, context: Context) -> Result:
        opened, predictor = in_model_classes(context.predictor, self.open(context)), context.predictor
        kinds = {"output": context.output, "scores_are": predictor.scores_are}
        return to_result(evaluate(predictor.scores, opened.batches, opened.num_classes, **kinds))


class ClassificationMetrics:
    """Accuracy, loss, calibration and confusion matrix over any number of batches.

    Sums are float64, and the lowest class wins a tie, so the result does not depend on the batch size.

    Args:
        num_classes: Number of classes `C`.
        output: `"softmax"` (one class per image) or `"sigmoid"` (any number of classes), as in the model's training.
        scores_are: `"logits"` or `"probabilities"`, the scores that `update` receives.

    References:
        Guo et al. 2017, "On Calibration of Modern Neural Networks": the expected calibration error, here with 15 bins.

    Example:
    >>> metrics = ClassificationMetrics(num_classes=3)
    >>> metrics.update(np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]]), np.array([0, 1]))
    >>> metrics.result()["accuracy"]
    0.5
    """

    def __init__(self, num_classes: int, output: str = "softmax", scores_are: str = "logits"):
        self.num_classes = num_classes
        self.output = checks.choice("output", output, CLASSIFICATION)
        self._is_exclusive = of(output).is_exclusive
        self.scores_are = checks.choice("scores_are", scores_are, ("logits", "probabilities"))
        self._multi_label: bool | None = None
        self._batches: list[dict[str, np.ndarray]] = []  # the values of each example that `result` needs

    def update(self, scores: np.ndarray, labels: np.ndarray, valid: np.ndarray | None = None) -> None:
        """Add one batch.

        Args:
            scores: Logits or probabilities, `[B, C]`.
            labels: Class numbers, int `[B]`, or multi-hot rows `[B, C]`.
            valid: `[B]`, 0 for rows of padding. By default every row counts.

        Raises:
            ValueError: If shapes disagree or a label is out of range.
        """
        scores = np.asarray(scores).astype(np.float64)
        labels = np.asarray(labels)
        valid = np.ones(len(labels), bool) if valid is None else np.asarray(valid) > 0
        self._check(scores, labels, valid)
        scores, labels = scores[valid], labels[valid]
        if not len(labels):
            return
        targets = (labels > 0) if self._multi_label else np.eye(self.num_classes, dtype=bool)[labels]  # [B, C]
        finite = np.isfinite(scores).all(axis=-1)
        # NaN loses every comparison, so a row of NaN would rank the true class first. It must count as wrong.
        best = np.argsort(-np.where(finite[:, None], scores, 0.0), axis=-1, kind="stable")[:, :5]  # ties: lowest class
        probabilities, losses = self._probabilities_and_losses(scores, targets)
        self._batches.append(
            {
                "labels": labels,
                "finite": finite,
                "predicted": best[:, 0],
                "hits": np.take_along_axis(targets, best, axis=-1) & finite[:, None],  # [B, min(5, C)]
                "losses": losses,
                # Average precision needs the probabilities of all classes.
                "probabilities": probabilities if self._multi_label else probabilities.max(axis=-1),
            }
        )

    def result(self) -> dict[str, Any]:
        """Return the metrics of all batches.

        Returns:
            A dictionary with the keys:

            - `examples`: Number of rows.
            - `non_finite`: Number of rows with NaN or infinity, which count as wrong.
            - `accuracy`, `accuracy_low`, `accuracy_high`: Top-1 accuracy and its 95% confidence interval.
            - `chance`, `largest_class`: Accuracy of random guesses, and of always predicting the most frequent class.
            - `balanced_accuracy`, `macro_f1`: Means over the classes; None for multi-label data.
            - `remark`: A sentence if the accuracy is not significantly above `largest_class`, else None.
            - `top5`, `ece`: Top-5 accuracy and calibration error.
            - `loss`: Mean over the examples. Sigmoid losses are summed over the classes.
            - `per_class`: Accuracy, or recall at 0.5 for multi-label data; NaN for classes without examples.
            - `class_examples`: Number of examples per class.
            - `confusion`: `[C, C]`, rows are true classes; None for multi-label data.
            - `mean_average_precision`: None unless the data are multi-label.
        """
        if not self._batches:
            raise ValueError("Nothing to measure: no batch had an example with valid 1.")
        rows = {name: np.concatenate([batch[name] for batch in self._batches]) for name in self._batches[0]}
        labels, finite, probabilities = rows["labels"], rows["finite"], rows["probabilities"]
        correct = rows["hits"][:, 0]
        result = {
            "examples": len(labels),
            "non_finite": int((~finite).sum()),
            "accuracy": float(correct.mean()),
            "top5": float(rows["hits"].any(axis=-1).mean()),
            "loss": float(rows["losses"].mean()),
        }
        if self._multi_label:
            targets = labels > 0
            recalled = (targets & (probabilities >= 0.5) & finite[:, None]).sum(axis=0)
            examples, confusion = targets.sum(axis=0), None
            calibration_error = _calibration_error(probabilities[finite].ravel(), targets[finite].ravel())
            precision = mean_average_precision(probabilities, targets)
        else:
            recalled, examples = (np.bincount(some, minlength=self.num_classes) for some in (labels[correct], labels))
            confusion = np.zeros((self.num_classes, self.num_classes), np.int64)
            np.add.at(confusion, (labels[finite], rows["predicted"][finite]), 1)
            calibration_error, precision = _calibration_error(probabilities[finite], correct[finite]), None
        return {
            **result,
            **confidence.in_context(int(correct.sum()), len(labels), examples, confusion),
            "ece": calibration_error,
            "per_class": recalled / np.where(examples, examples, np.nan),
            "class_examples": examples,
            "confusion": confusion,
            "mean_average_precision": precision,
        }

    def _check(self, scores: np.ndarray, labels: np.ndarray, valid: np.ndarray) -> None:
        if scores.ndim != 2 or scores.shape[1] != self.num_classes:
            raise ValueError(f"scores must have the shape [B, {self.num_classes}]. Received: shape {scores.shape}.")
        if labels.ndim not in (1, 2) or len(labels) != len(scores) or len(valid) != len(scores):
            raise ValueError(
                f"labels and valid must have one row for each of the {len(scores)} rows of scores. "
                f"Received: labels of shape {labels.shape}, valid of shape {valid.shape}."
            )
        multi_label = labels.ndim == 2
        if self._multi_label not in (None, multi_label):
            raise ValueError("labels must be class numbers in every batch or multi-hot rows in every batch.")
        self._multi_label = multi_label
        if multi_label:
            if self._is_exclusive or labels.shape[1] != self.num_classes:
                raise ValueError(
                    f"Multi-hot labels need output='sigmoid' and {self.num_classes} columns. Received: "
                    f"output={self.output!r} and {labels.shape[1]} columns."
                )
            return
        wrong = labels[valid & ((labels < 0) | (labels >= self.num_classes))]
        if len(wrong):
            raise ValueError(f"labels must be in [0, {self.num_classes}). Received: {wrong[0]}.")

    def _probabilities_and_losses(self, scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return probabilities `[B, C]` and the loss of each row `[B]`."""
        log_no: float | np.ndarray = 0.0  # only the true class contributes to the softmax loss
        if self.scores_are == "probabilities":
            probabilities, log_yes = scores, np.log(np.maximum(scores, _TINY))
            if not self._is_exclusive:
                log_no = np.log(np.maximum(1.0 - scores, _EPSILON))
        elif self._is_exclusive:
            probabilities, log_yes = special.softmax(scores, axis=-1), special.log_softmax(scores, axis=-1)
        else:
            probabilities, log_yes, log_no = (
                special.expit(scores),
                special.log_expit(scores),
                special.log_expit(-scores),
            )
        return probabilities, -np.where(targets, log_yes, log_no).sum(axis=-1)


def _calibration_error(confidences: np.ndarray, correct: np.ndarray) -> float:
    if not len(confidences):
        return float("nan")
    # Bins are (0, 1/n], (1/n, 2/n], ..., as in the paper: a bin includes its right edge.
    bins = np.clip(np.ceil(confidences * CALIBRATION_BINS).astype(int) - 1, 0, CALIBRATION_BINS - 1)
    return float(np.abs(np.bincount(bins, correct - confidences)).sum() / len(confidences))


def to_result(found: dict[str, Any]) -> Result:
    """Convert the result of `ClassificationMetrics` to a `Result`, with single numbers as metrics."""
    names = ["accuracy", "accuracy_low", "accuracy_high", "chance", "largest_class", "balanced_accuracy", "macro_f1"]
    if found["mean_average_precision"] is not None:  # with several classes per image, top-1 accuracies say little
        names, found = ["mean_average_precision"], {**found, "remark": None}
    else:
        names.append("top5")
    names += ["loss", "ece", "examples"]
    names += ["non_finite"] if found["non_finite"] else []
    details = ("non_finite", "per_class", "class_examples", "confusion", "mean_average_precision", "remark")
    metrics = {name: found[name] for name in names if found[name] is not None}
    return Result(metrics, details={name: found[name] for name in details})


def evaluate(
    predict: Callable[[np.ndarray], np.ndarray],
    batches: Iterable[dict],
    num_classes: int,
    *,
    output: str = "softmax",
    scores_are: str = "logits",
) -> dict[str, Any]:
    """Measure a predictor in one pass over the data.

    Args:
        predict: Function from preprocessed images, float32 `[B, H, W, C]`, to scores `[B, num_classes]`.
        batches: Iterable of dictionaries with "image", "label" and, if some rows are padding, "valid".
        num_classes: Number of classes.
        output: `"softmax"` or `"sigmoid"`, as when the model was trained.
        scores_are: `"logits"` or `"probabilities"`, the scores that `predict` returns.

    Returns:
        The result of `ClassificationMetrics`.

    Example:
    >>> batches = [{"image": images, "label": np.array([0, 1, 2, 3])}]
    >>> evaluate(model.predict_on_batch, batches, num_classes=10)["examples"]
    4
    """
    metrics = ClassificationMetrics(num_classes, output, scores_are)
    for batch in batches:
        metrics.update(predict(batch["image"]), batch["label"], batch.get("valid"))
    return metrics.result()
