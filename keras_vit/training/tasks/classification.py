"""Classification: cross-entropy of the labels, of one class per image or of several."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import optim
from keras_vit import recipe as recipes
from keras_vit.training.tasks.task import Shown, Task
from keras_vit.util.formatting import percent
from keras_vit.util.metrics import mean_average_precision

MAX_CLASSES = 200  # with more classes, the confusion matrix is not counted


def class_weights(counts: np.ndarray, balance: float) -> np.ndarray:
    """Return the weight of each class for its number of training images, float32 `[classes]`.

    A weight is proportional to `count ** -balance`. The mean weight over the images is 1.
    """
    weights = np.where(counts > 0, np.maximum(counts, 1.0) ** -balance, 0.0)
    return (weights * counts.sum() / (weights @ counts)).astype(np.float32)


class Classification(Task):
    """Cross-entropy of the labels. The values are images `[b, h, w, c]` and labels `[b, classes]`."""

    def __init__(self, recipe: recipes.Recipe, source: Any = None, outputs: int = 0):
        super().__init__(recipe, source, outputs)
        self.class_names = source.class_names if source is not None else ()
        self.counts = 0 < self.outputs <= MAX_CLASSES
        self.class_weights = None
        if recipe.class_balance and source is not None:
            counts = np.bincount(source.labels(), minlength=source.num_classes)
            self.class_weights = class_weights(counts, recipe.class_balance)

    def name_outputs(self, model: keras.Model) -> None:
        if model.config.include_top:
            model.class_names = self.class_names

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


class MultiLabel(Classification):
    """Independent binary cross-entropy of each class. The score needs the predictions of all examples."""

    collects = True

    def __init__(self, recipe: recipes.Recipe, source: Any = None, outputs: int = 0):
        super().__init__(recipe, source, outputs)
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
