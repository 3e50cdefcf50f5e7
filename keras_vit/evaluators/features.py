"""Evaluators of features: they learn from the features of one split and test on those of another."""

import abc
import dataclasses
from collections.abc import Sequence

import numpy as np

from keras_vit import _checks
from keras_vit.evaluators.dataset import Labeled
from keras_vit.evaluators.evaluation import Context, Evaluator, Result


@dataclasses.dataclass(kw_only=True)
class FeatureEvaluator(Evaluator):
    """Evaluator of features, whose data may have any classes; None takes source, splits and `pp` of the context."""

    source: str | None = None
    train_split: str | None = None
    eval_split: str | None = None
    pp: str | None = None

    def __post_init__(self):
        for name in ("source", "train_split", "eval_split", "pp"):
            _checks.optional_text(name, getattr(self, name))

    def splits(self, context: Context) -> list[tuple[str, str, str]]:
        """Return source, split and preprocessing string to learn from and to test on."""
        source, pp = self.source or context.source, self.pp or context.preprocess
        splits = self.train_split or context.train_split, self.eval_split or context.eval_split
        return [(source, split, pp) for split in splits]

    def check(self, context: Context) -> None:
        context.require_features()
        check_splits(context, self.splits(context))

    def measure(self, context: Context) -> Result:
        (train, num_classes), (test, _) = (context.features(*split) for split in self.splits(context))
        return Result(self.evaluate(train, test, num_classes))

    @abc.abstractmethod
    def evaluate(self, train: Labeled, test: Labeled, num_classes: int) -> dict[str, float]:
        """Return the metrics of a classifier that is trained on features of `train`, on those of `test`."""


def check_splits(context: Context, splits: Sequence[tuple[str, str, str]]) -> None:
    """Open splits; refuse several classes per example, different classes, and images that do not fit the predictor."""
    opened = [context.open_fitting(*split) for split in splits]
    for (source, name, _), split in zip(splits, opened, strict=True):
        if split.multi_label:
            raise ValueError(f"One class per example is needed. Received: {source!r}, whose examples have several.")
        if (split.num_classes, split.class_names) != (opened[0].num_classes, opened[0].class_names):
            raise ValueError(
                f"All splits must have the same classes. Received: {opened[0].num_classes} in {splits[0][1]!r} and "
                f"{split.num_classes} in {name!r} of {source!r}."
            )


def check_labels(labels: np.ndarray, num_classes: int, what: str) -> np.ndarray:
    """Return labels as int64 `[N]`; refuse several classes per example and class numbers out of range."""
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise ValueError(f"{what} needs one class per example, labels [N]. Received: shape {labels.shape}.")
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if len(wrong):
        raise ValueError(f"The labels of {what} must lie in [0, {num_classes}). Received: {wrong[0]}.")
    return labels.astype(np.int64)


def standardization(features: np.ndarray, epsilon: float = 1e-5) -> tuple[np.ndarray, np.ndarray]:
    """Return mean, and standard deviation plus `epsilon`, of each feature, float64 `[1, D]`."""
    features = features.astype(np.float64)
    return features.mean(axis=0, keepdims=True), features.std(axis=0, keepdims=True) + epsilon
