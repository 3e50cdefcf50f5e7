"""Classification: cross-entropy of the labels."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_vit import optim
from keras_vit.tasks.task import ACCURACY, NATS, Shown, Task
from keras_vit.util.formatting import percent
from keras_vit.util.metrics import Metric

if TYPE_CHECKING:
    from keras_vit.data.sources import Source

MAX_CLASSES = 200  # with more classes, the confusion matrix is not counted


def class_weights(counts: np.ndarray, balance: float) -> np.ndarray:
    """Return the weight of each class for its number of training images, float32 `[classes]`.

    A weight is proportional to `count ** -balance`. The mean weight over the images is 1.
    """
    weights = np.where(counts > 0, np.maximum(counts, 1.0) ** -balance, 0.0)
    return (weights * counts.sum() / (weights @ counts)).astype(np.float32)


@dataclasses.dataclass
class Classification(Task):
    """Classification of images with one class each.

    The loss is the cross-entropy of the labels. The values are images `[b, h, w, c]` and labels `[b, classes]`.

    Example:
    >>> parse_task("classification").score.name
    'accuracy'
    """

    name: ClassVar[str] = "classification"
    labels: ClassVar[str | None] = "class"
    metrics: ClassVar[tuple[Metric, ...]] = (NATS, ACCURACY)
    evaluator: ClassVar[str] = "classification"

    @property
    def linear_loss(self) -> str:  # type: ignore[override]
        """Loss of the recipe."""
        return self.recipe.loss

    def output(self, recipe: Any) -> str:
        """Return the loss of the recipe, which determines how logits become probabilities."""
        return recipe.loss

    def prepare(self, source: "Source | None") -> None:
        self.class_names = source.class_names if source is not None else ()
        self.counts = 0 < self.outputs <= MAX_CLASSES
        self.class_weights: np.ndarray | None = None
        if self.recipe.class_weight_exponent and source is not None:
            counts = np.bincount(source.labels(), minlength=source.num_classes)
            self.class_weights = class_weights(counts, self.recipe.class_weight_exponent)

    def name_outputs(self, model: keras.Model) -> None:
        if model.config.include_top:
            model.class_names, model.prediction_activation = self.class_names, self.output(self.recipe)

    def values(self, images: Any, batch: dict) -> tuple:
        """Return images and labels, from class numbers `[b]` or values per class `[b, classes]`."""
        labels = batch["label"]
        if len(labels.shape) == 1:
            return images, ops.one_hot(labels, self.outputs, dtype="float32")
        return images, ops.cast(labels, "float32")

    def __call__(self, model: keras.Model, values: tuple, training: bool) -> tuple[dict[str, Any], Any]:
        """Return losses, accuracies (0 or 1 per image) and logits."""
        images, labels = values
        logits = ops.cast(model(images, training=training), "float32")  # [b, classes]
        weighted = training and self.class_weights is not None
        loss = optim.cross_entropy(logits, labels * self.class_weights if weighted else labels, self.recipe.loss)
        return {"loss": loss, "accuracy": optim.is_correct(logits, labels)}, logits

    def tally(self, values: tuple, predictions: Any, valid: Any) -> Any:
        """Return the confusion matrix, counts `[true classes, predicted classes]`."""
        if not self.counts:
            return super().tally(values, predictions, valid)
        _, labels = values
        predicted = ops.one_hot(ops.argmax(predictions, axis=-1), predictions.shape[-1], dtype="float32")
        return ops.matmul(ops.transpose(labels * valid[:, None]), predicted)  # [classes, classes]

    def show(self, batch: Mapping[str, np.ndarray], preprocess: Callable) -> Shown:
        """Return the images with their most probable classes."""
        to_shares = ops.sigmoid if self.recipe.loss == "sigmoid" else ops.softmax
        shares, true = ops.convert_to_numpy(to_shares(batch["predictions"])), batch["label"]
        predicted, confidence = shares.argmax(axis=-1), shares.max(axis=-1)
        right = predicted == true
        captions = [
            f"{self.class_names[found]} · {percent(share)}" + ("" if is_right else f"\n(is {self.class_names[of]})")
            for found, share, is_right, of in zip(predicted, confidence, right, true, strict=True)
        ]
        return Shown({"image": batch["image"]}, captions, right, confidence)
