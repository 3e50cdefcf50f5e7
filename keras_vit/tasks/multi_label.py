"""Classification of images with any number of classes each."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from keras import ops

from keras_vit.tasks.classification import Classification
from keras_vit.tasks.task import NATS, Shown
from keras_vit.util.metrics import Metric, mean_average_precision

if TYPE_CHECKING:
    from keras_vit.data.sources import Source


@dataclasses.dataclass
class MultiLabel(Classification):
    """Classification of images with any number of classes each, whose probabilities are independent.

    The loss is the binary cross-entropy of each class. The score is the mean average precision: the mean over the
    classes of the area under the precision-recall curve. It needs the predictions of all examples.

    Example:
    >>> parse_task("multi_label").score.name
    'mean_average_precision'
    """

    name: ClassVar[str] = "multi_label"
    labels: ClassVar[str | None] = "classes"
    losses: ClassVar[tuple[str, ...]] = ("sigmoid",)
    metrics: ClassVar[tuple[Metric, ...]] = (NATS, Metric("mean_average_precision", unit="%"))
    collects = True

    @property
    def step_metrics(self) -> tuple[Metric, ...]:
        """Loss. The precision is a property of the whole split."""
        return self.metrics[:1]

    def prepare(self, source: "Source | None") -> None:
        super().prepare(source)
        self.counts = False

    def of_examples(self, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        """Return the mean average precision of logits."""
        return {"mean_average_precision": mean_average_precision(predictions, labels > 0)}

    def show(self, batch: Mapping[str, np.ndarray], preprocess: Callable) -> Shown:
        """Return the images with all classes whose probability is at least 0.5."""
        shares, true = ops.convert_to_numpy(ops.sigmoid(batch["predictions"])), batch["label"] > 0
        predicted = shares >= 0.5
        right, confidence = (predicted == true).all(axis=-1), np.maximum(shares, 1 - shares).min(axis=-1)
        captions = [
            self._listed(found) + ("" if is_right else f"\n(is {self._listed(of)})")
            for found, is_right, of in zip(predicted, right, true, strict=True)
        ]
        return Shown({"image": batch["image"]}, captions, right, confidence)

    def _listed(self, chosen: np.ndarray) -> str:
        return ", ".join(self.class_names[index] for index in np.flatnonzero(chosen)) or "none"
