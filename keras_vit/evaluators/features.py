"""Evaluators of features, which train a classifier on one split and test it on another."""

import abc
import dataclasses
from collections.abc import Sequence

import numpy as np

from keras_vit.evaluators.dataset import Labeled
from keras_vit.evaluators.evaluation import Context, Result, SplitEvaluator
from keras_vit.util import checks


@dataclasses.dataclass(kw_only=True)
class FeatureEvaluator(SplitEvaluator):
    """Base class of evaluators of features. The classes of the data need not be classes of the model.

    Attributes:
        train_split: Split for training. The context's by default.

    Example:
    >>> class MostFrequent(FeatureEvaluator):
    ...     name = "most_frequent"
    ...
    ...     def evaluate(self, train, test, num_classes):
    ...         return {"accuracy": float((test[1] == np.bincount(train[1]).argmax()).mean())}
    """

    train_split: str | None = None

    def __post_init__(self):
        super().__post_init__()
        checks.optional_text("train_split", self.train_split)

    def splits(self, context: Context) -> list[tuple[str, str, str]]:
        """Return source, split and preprocessing string of the training data and of the test data."""
        source, split, pp = self.data_choice(context)
        return [(source, self.train_split or context.train_split, pp), (source, split, pp)]

    def check(self, context: Context) -> None:
        context.require_features()
        check_splits(context, self.splits(context))

    def measure(self, context: Context) -> Result:
        (train, num_classes), (test, _) = (context.features(*split) for split in self.splits(context))
        return Result(self.evaluate(train, test, num_classes))

    @abc.abstractmethod
    def evaluate(self, train: Labeled, test: Labeled, num_classes: int) -> dict[str, float]:
        """Train a classifier on features `[N, D]` and labels `[N]` of `train`, and return its metrics on `test`."""


def check_splits(context: Context, splits: Sequence[tuple[str, str, str]]) -> None:
    """Open splits. Check that each image has one class, all splits have the same classes, and images fit the model."""
    opened = [context.open_fitting(*split, FeatureEvaluator.label_kinds) for split in splits]
    for (source, name, _), split in zip(splits, opened, strict=True):
        if (split.num_classes, split.class_names) != (opened[0].num_classes, opened[0].class_names):
            raise ValueError(
                f"All splits must have the same classes. Received: {opened[0].num_classes} in {splits[0][1]!r} and "
                f"{split.num_classes} in {name!r} of {source!r}."
            )


def check_examples(examples: Labeled, num_classes: int, what: str) -> Labeled:
    """Return features `[N, D]` and labels, int64 `[N]`. Raise an error if they are not finite or out of range."""
    features, labels = map(np.asarray, examples)
    finite = np.isfinite(features).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"The features of {what} are not finite for {(~finite).sum():,} of {len(finite):,} images. "
            "Check the model's weights; in half precision, numbers may overflow."
        )
    if labels.ndim != 1:
        raise ValueError(f"{what} needs one class per example, labels [N]. Received: shape {labels.shape}.")
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if len(wrong):
        raise ValueError(f"The labels of {what} must be in [0, {num_classes}). Received: {wrong[0]}.")
    return features, labels.astype(np.int64)


def standardization(features: np.ndarray, epsilon: float = 1e-5) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of each feature, and its standard deviation plus `epsilon`, both float64 `[1, D]`."""
    features = features.astype(np.float64)
    return features.mean(axis=0, keepdims=True), features.std(axis=0, keepdims=True) + epsilon
