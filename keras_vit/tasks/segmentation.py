"""Segmentation: cross-entropy of each pixel."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_vit.layers.interpolation import resize_logits
from keras_vit.models.dense_heads import HEADS
from keras_vit.tasks import patches as p
from keras_vit.tasks.task import NATS, Shown, Task
from keras_vit.util import checks
from keras_vit.util.metrics import Metric, segmentation_scores

if TYPE_CHECKING:
    from keras_vit.data.sources import Source

MAX_CLASSES = 4_096  # the confusion matrix of more classes takes too much memory
_MOST_LINES = 20  # maximum number of classes in the report of a run


@dataclasses.dataclass
class Segmentation(Task):
    """Prediction of a class for each pixel.

    The loss is the cross-entropy of each pixel. The logits are resized to the masks. The loss of an image is the mean
    over all of its pixels, where ignored pixels contribute zero, as in mmsegmentation. Every pixel therefore has the
    same weight, however a batch is divided.

    The score is the intersection over union, computed over all pixels of the data set and averaged over the classes.
    The ignored class, and classes that are absent from both the masks and the predictions, are left out.

    The values are images `[b, h, w, c]` and masks of class numbers, int32 `[b, h, w]`.

    Attributes:
        classes: Number of classes. None takes the number from the data; any other number must match the data.
        ignore: Number of a class whose pixels are ignored, in addition to ignored pixels of the masks. 255 stands for
            no class.
        head: `"linear"` or `"upsample"`; see `keras_vit.models.LinearSegmenter` and `UpsampleSegmenter`.
        blocks: Indices of the blocks that the head reads. Negative indices count from the end. None means the last
            block.
        class_weights: Factor on the loss of each class. None means 1.
        dropout_rate: Probability of dropping a whole channel of an image before the head.

    References:
        - [DINOv2](https://arxiv.org/abs/2304.07193), section 7.4, for `head="linear"` on frozen features

    Example:
    >>> str(parse_task("segmentation(head='upsample', blocks=(2, 5, 8, 11))"))
    "segmentation(head='upsample', blocks=(2, 5, 8, 11))"
    """

    classes: int | None = None
    ignore: int = 255
    head: str = "linear"
    blocks: tuple[int, ...] | None = None
    class_weights: tuple[float, ...] | None = None
    dropout_rate: float = 0.0
    name: ClassVar[str] = "segmentation"
    labels: ClassVar[str | None] = "mask"
    losses: ClassVar[tuple[str, ...]] = ("softmax",)
    metrics: ClassVar[tuple[Metric, ...]] = (NATS, Metric("miou", unit="%"), Metric("pixel_accuracy", unit="%"))
    evaluator: ClassVar[str] = "segmentation"
    counts = True

    def __post_init__(self):
        super().__post_init__()
        checks.choice("head", self.head, tuple(HEADS))
        for name in ("blocks", "class_weights"):
            if getattr(self, name) is not None:
                setattr(self, name, tuple(checks.sequence(name, getattr(self, name), "numbers, one or several")))
        checks.rate("dropout_rate", self.dropout_rate)

    @property
    def linear_loss(self) -> str:  # type: ignore[override]
        """Loss of the linear head."""
        return "softmax" if self.head == "linear" else ""

    @property
    def step_metrics(self) -> tuple[Metric, ...]:
        """Loss and accuracy. The mean of the intersection over union over steps would be misleading."""
        return (self.metrics[0], self.metrics[2])

    def create_head(self, outputs: int, dtype: str) -> keras.layers.Layer:
        """Return the layer that classifies the patches."""
        return HEADS[self.head](outputs, blocks=self.blocks, dropout_rate=self.dropout_rate, dtype=dtype)

    def loss_values(self, recipe: Any, outputs: int) -> int:
        """Return the number of logits at the size of the masks, plus their gradients."""
        return 2 * outputs * recipe.model.image_size**2

    def output(self, recipe: Any) -> str:
        return "mask"

    def prepare(self, source: "Source | None") -> None:
        given, weights = self.classes, self.class_weights
        self.outputs = self.outputs or given or 0
        self.class_names = source.class_names if source is not None else tuple(map(str, range(self.outputs)))
        if given not in (None, self.outputs) or self.outputs > MAX_CLASSES:
            raise ValueError(
                f"task={str(self)!r} needs masks of {given or f'at most {MAX_CLASSES:,}'} classes. Received: "
                f"{self.recipe.data.source!r} with {self.outputs:,} classes."
            )
        if weights is not None and len(weights) != self.outputs:
            raise ValueError(
                f"class_weights must have a number for each of the {self.outputs} classes. Received: {len(weights)}."
            )

    def name_outputs(self, model: keras.Model) -> None:
        model.class_names = self.class_names

    def values(self, images: Any, batch: dict) -> tuple:
        """Return images and masks, with -1 for ignored pixels."""
        mask, ignore = ops.cast(batch["mask"], "int32"), self.ignore
        counted = mask < self.outputs  # ignored pixels have larger numbers
        if ignore != 255:
            counted = ops.logical_and(counted, mask != ignore)
        return images, ops.where(counted, mask, -1)

    def __call__(self, model: keras.Model, values: tuple, training: bool) -> tuple[dict[str, Any], Any]:
        """Return losses, pixel accuracies and logits `[b, height, width, classes]`. Ignored pixels are excluded."""
        images, masks = values
        outputs = ops.cast(model(images, training=training), "float32")
        logits = resize_logits(outputs, masks.shape[1:])  # [b, h, w, classes]
        counted, true = ops.cast(masks >= 0, "float32"), ops.maximum(masks, 0)
        losses = counted * ops.sparse_categorical_crossentropy(true, logits, from_logits=True)  # [b, h, w]
        if self.class_weights is not None:
            losses = losses * ops.take(np.asarray(self.class_weights, np.float32), true)
        right = counted * ops.cast(ops.equal(ops.argmax(logits, axis=-1), true), "float32")
        accuracy = ops.sum(right, axis=(1, 2)) / ops.maximum(ops.sum(counted, axis=(1, 2)), 1.0)
        return {"loss": ops.mean(losses, axis=(1, 2)), "pixel_accuracy": accuracy}, outputs

    def tally(self, values: tuple, predictions: Any, valid: Any) -> Any:
        """Return the confusion matrix of pixels, int32 `[true classes, predicted classes]`, exact beyond 2**24."""
        _, masks = values
        predicted = ops.cast(ops.argmax(resize_logits(predictions, masks.shape[1:]), axis=-1), "int32")
        counted = ops.logical_and(masks >= 0, valid[:, None, None] > 0)
        pairs = self.outputs**2
        pair = ops.reshape(ops.where(counted, masks * self.outputs + predicted, pairs), [-1])
        counts = ops.segment_sum(ops.ones_like(pair), pair, pairs + 1)  # the last entry counts ignored pixels
        return ops.reshape(counts[:-1], [self.outputs, self.outputs])

    def of_tally(self, tally: np.ndarray) -> dict[str, float]:
        """Return the scores over all pixels of the evaluation."""
        scores = segmentation_scores(tally, self.ignore)
        return {name: value for name, value in scores.items() if isinstance(value, float)}

    def lines(self, tally: np.ndarray) -> list[str]:
        """Return the intersection over union of each class, lowest first."""
        iou = segmentation_scores(tally, self.ignore)["iou"]
        order = [index for index in np.argsort(iou, kind="stable") if np.isfinite(iou[index])]
        shown, percent = order[:_MOST_LINES], Metric("iou", unit="%")
        width = max((len(self.class_names[index]) for index in shown), default=0)
        rows = [f"  {self.class_names[index]:<{width}} {percent.text(float(iou[index])):>8}" for index in shown]
        more = [f"  (the {_MOST_LINES} lowest of {len(order)})"] if len(order) > len(shown) else []
        absent = [name for name, count in zip(self.class_names, tally.sum(axis=1), strict=True) if not count]
        more += [f"  (without pixels in the masks: {checks.listed(absent)})"] if absent else []
        return ["Intersection over union per class", *rows, *more]

    def show(self, batch: Mapping[str, np.ndarray], preprocess: Callable) -> Shown:
        """Return the images with the masks of their true and predicted classes."""
        images = p.as_bytes(batch["image"])
        _, masks = self.values(None, {"mask": ops.convert_to_tensor(batch["mask"])})
        masks = ops.convert_to_numpy(masks)
        logits = resize_logits(ops.convert_to_tensor(batch["predictions"]), masks.shape[1:])
        predicted = ops.convert_to_numpy(ops.argmax(logits, axis=-1))
        return Shown({"image": images}, masks={"mask": masks, "prediction": predicted})
