"""Segmentation: cross-entropy of each pixel."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import recipe as recipes
from keras_vit.inference.masks import overlay
from keras_vit.models.dense_heads import resized
from keras_vit.training.tasks import patches as p
from keras_vit.training.tasks.task import Shown, Task
from keras_vit.util import checks
from keras_vit.util.metrics import Metric, segmentation_scores

MAX_CLASSES = 4_096  # the confusion matrix of more classes takes too much memory
_MOST_LINES = 20  # maximum number of classes in the report of a run


class Segmentation(Task):
    """Cross-entropy of each pixel. The values are images `[b, h, w, c]` and masks of class numbers, int32 `[b, h, w]`.

    The logits are resized to the masks. The loss of an image is the mean over all of its pixels, where ignored pixels
    contribute zero, as in mmsegmentation. Every pixel therefore has the same weight, however a batch is divided.
    """

    counts = True

    def __init__(self, recipe: recipes.Recipe, source: Any = None, outputs: int = 0):
        super().__init__(recipe, source, outputs)
        given, weights = self.arguments.classes, self.arguments.class_weights
        self.outputs = self.outputs or given or 0
        self.class_names = source.class_names if source is not None else tuple(map(str, range(self.outputs)))
        if given not in (None, self.outputs) or self.outputs > MAX_CLASSES:
            raise ValueError(
                f"task={str(self.arguments)!r} needs masks of {given or f'at most {MAX_CLASSES:,}'} classes. Received: "
                f"{recipe.data.source!r} with {self.outputs:,} classes."
            )
        if weights is not None and len(weights) != self.outputs:
            raise ValueError(
                f"class_weights must have a number for each of the {self.outputs} classes. Received: {len(weights)}."
            )

    def name_outputs(self, model: keras.Model) -> None:
        model.class_names = self.class_names

    def values(self, images: Any, batch: dict) -> tuple:
        """Return images and masks, with -1 for ignored pixels."""
        mask, ignore = ops.cast(batch["mask"], "int32"), self.arguments.ignore
        counted = mask < self.outputs  # ignored pixels have larger numbers
        if ignore != 255:
            counted = ops.logical_and(counted, mask != ignore)
        return images, ops.where(counted, mask, -1)

    def __call__(self, model: keras.Model, values: tuple, training: bool) -> tuple[dict[str, Any], Any]:
        """Return losses, pixel accuracies and logits `[b, height, width, classes]`. Ignored pixels are excluded."""
        images, masks = values
        outputs = ops.cast(model(images, training=training), "float32")
        logits = resized(outputs, masks.shape[1:])  # [b, h, w, classes]
        counted, true = ops.cast(masks >= 0, "float32"), ops.maximum(masks, 0)
        losses = counted * ops.sparse_categorical_crossentropy(true, logits, from_logits=True)  # [b, h, w]
        if self.arguments.class_weights is not None:
            losses = losses * ops.take(np.asarray(self.arguments.class_weights, np.float32), true)
        right = counted * ops.cast(ops.equal(ops.argmax(logits, axis=-1), true), "float32")
        accuracy = ops.sum(right, axis=(1, 2)) / ops.maximum(ops.sum(counted, axis=(1, 2)), 1.0)
        return {"loss": ops.mean(losses, axis=(1, 2)), "pixel_accuracy": accuracy}, outputs

    def tally(self, values: tuple, predictions: Any, valid: Any) -> Any:
        """Return the confusion matrix of pixels, int32 `[true classes, predicted classes]`, exact beyond 2**24."""
        _, masks = values
        predicted = ops.cast(ops.argmax(resized(predictions, masks.shape[1:]), axis=-1), "int32")
        counted = ops.logical_and(masks >= 0, valid[:, None, None] > 0)
        pairs = self.outputs**2
        pair = ops.reshape(ops.where(counted, masks * self.outputs + predicted, pairs), [-1])
        counts = ops.segment_sum(ops.ones_like(pair), pair, pairs + 1)  # the last entry counts ignored pixels
        return ops.reshape(counts[:-1], [self.outputs, self.outputs])

    def of_tally(self, tally: np.ndarray) -> dict[str, float]:
        """Return the scores over all pixels of the evaluation."""
        scores = segmentation_scores(tally, self.arguments.ignore)
        return {name: value for name, value in scores.items() if isinstance(value, float)}

    def lines(self, tally: np.ndarray) -> list[str]:
        """Return the intersection over union of each class, lowest first."""
        iou = segmentation_scores(tally, self.arguments.ignore)["iou"]
        order = [index for index in np.argsort(iou, kind="stable") if np.isfinite(iou[index])]
        shown, percent = order[:_MOST_LINES], Metric("iou", unit="%")
        width = max((len(self.class_names[index]) for index in shown), default=0)
        rows = [f"  {self.class_names[index]:<{width}} {percent.text(float(iou[index])):>8}" for index in shown]
        more = [f"  (the {_MOST_LINES} lowest of {len(order)})"] if len(order) > len(shown) else []
        absent = [name for name, count in zip(self.class_names, tally.sum(axis=1), strict=True) if not count]
        more += [f"  (without pixels in the masks: {checks.listed(absent)})"] if absent else []
        return ["Intersection over union per class", *rows, *more]

    def show(self, batch: Mapping[str, np.ndarray], preprocess: Callable) -> Shown:
        """Return the images, and the images overlaid with the true and with the predicted classes."""
        images = p.as_bytes(batch["image"])
        _, masks = self.values(None, {"mask": ops.convert_to_tensor(batch["mask"])})
        masks = ops.convert_to_numpy(masks)
        logits = resized(ops.convert_to_tensor(batch["predictions"]), masks.shape[1:])
        predicted = ops.convert_to_numpy(ops.argmax(logits, axis=-1))
        return Shown({"image": images, "mask": overlay(images, masks), "prediction": overlay(images, predicted)})
