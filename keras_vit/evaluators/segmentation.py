"""Intersection over union and pixel accuracy of segmentation, counted over a whole data set."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from absl import logging

from keras_vit.evaluators.class_matching import in_model_classes
from keras_vit.evaluators.dataset import EvaluationData
from keras_vit.evaluators.evaluation import Context, NotMeasurable, Result, SplitEvaluator, register
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.predictor import in_batches
from keras_vit.util import checks
from keras_vit.util.metrics import segmentation_scores

_AT_A_TIME = 8  # windows


@register
@dataclasses.dataclass(kw_only=True)
class Segmentation(SplitEvaluator):
    """mIoU, mean class accuracy and pixel accuracy, exact over the data set.

    The ignored class, and classes that are absent from both the masks and the predictions, are left out of the means.
    If a score is not finite, all results are NaN. By default, predictions are compared with the preprocessed masks.
    With `stride`, images may have any size: sliding windows cover the image after `pp`, the logits of overlapping
    windows are averaged, and the result is resized to the stored mask.

    Attributes:
        stride: Pixels between two windows. By default, each image is predicted as a whole.
        crop: Height and width of a window, for models that take any image size. By default, the size of the model.
        ignore: Number of a class whose pixels are ignored; 255 for no class. By default, the class of the training
            recipe.
        pp: Preprocessing of the whole image if windows are used, such as
            `"decode|resize_small(512)|value_range(-1, 1)"`. By default, the model's preprocessing without operations
            that crop or resize.

    References:
        - [mmsegmentation](https://github.com/open-mmlab/mmsegmentation): `IoUMetric` and `slide_inference`
        - [DINOv3](https://arxiv.org/abs/2508.10104): windows of 512 pixels, 341 apart
    """

    name: ClassVar = "segmentation"
    outputs: ClassVar = ("mask",)
    label_kinds: ClassVar = ("mask",)
    stride: int | None = None
    crop: int | None = None
    ignore: int | None = None

    def __post_init__(self):
        super().__post_init__()
        for name in ("stride", "crop"):
            if getattr(self, name) is not None:
                checks.positive_int(name, getattr(self, name))

    def check(self, context: Context) -> None:
        self._open(context)
        if self.stride is None:
            return
        if context.predictor.scores_are != "logits":
            raise NotMeasurable("Windows need the logits of the model, and this artifact returns masks.")
        window = self._window(context)
        if self.stride > min(window):
            raise ValueError(
                f"`stride` must be at most {min(window)}, the shorter side of a window. Received: stride={self.stride}."
            )

    def measure(self, context: Context) -> Result:
        self.check(context)
        opened = self._open(context)
        classes, ignore = opened.num_classes, ignored(context.predictor.card) if self.ignore is None else self.ignore
        confusion, examples, non_finite = np.zeros((classes, classes), np.int64), 0, 0
        for predicted, true, finite in self._predictions(context, opened):
            confusion += count(true if ignore == 255 else np.where(true == ignore, -1, true), predicted, classes)
            examples, non_finite = examples + 1, non_finite + (not finite)
        if not confusion.sum():
            raise ValueError("There is nothing to evaluate: no pixel of the masks counts.")
        return to_result(confusion, examples, opened.class_names, non_finite, ignore)

    def _open(self, context: Context) -> EvaluationData:
        source, split, pp = self.data_choice(context)
        pp = pp if self.stride is None else context.preprocess
        return in_model_classes(
            context.predictor, context.open_fitting(source, split, pp, self.label_kinds, self.outputs)
        )

    def _window(self, context: Context) -> tuple[int, int]:
        height, width = (side or self.crop for side in context.image_shape[:2])
        if height is None or width is None:
            raise ValueError("The model takes images of any size. Pass the size of the windows, such as crop=512.")
        return height, width

    def _predictions(self, context: Context, opened: EvaluationData) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
        """Yield the predicted and true classes of each image, both `[h, w]`, and whether all scores are finite."""
        scores = context.predictor.scores
        if self.stride is None:
            for batch in opened.batches:
                found, valid = scores(batch["image"]), np.asarray(batch["valid"]) > 0
                classes = to_classes(found, batch["mask"].shape[1:])
                for index in np.flatnonzero(valid):
                    yield classes[index], batch["mask"][index], bool(np.isfinite(found[index]).all())
            return
        assert opened.originals is not None  # always set for masks
        for example in opened.originals(self.pp):
            logits = slide(scores, example["image"], self._window(context), self.stride)
            yield to_classes(logits[None], example["mask"].shape)[0], example["mask"], bool(np.isfinite(logits).all())


def ignored(card: ModelCard) -> int:
    """Return the number of the class that the training recipe ignores, or 255."""
    from keras_vit import recipe as recipes  # needs Keras

    return getattr(recipes.parse_task(card.recipe.get("task", "segmentation")), "ignore", 255)


def count(true: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Return the confusion matrix of pixels, int64 `[true classes, predicted classes]`.

    Pixels whose true class is outside `range(classes)` are ignored.
    """
    kept = (true >= 0) & (true < classes)
    pairs = true[kept].astype(np.int64) * classes + predicted[kept]
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def to_result(
    confusion: np.ndarray, examples: int, class_names: Sequence[str] | None, non_finite: int = 0, ignore: int = 255
) -> Result:
    """Return the scores of a confusion matrix of pixels as a `Result`, with details of each class."""
    scores = segmentation_scores(confusion * (np.nan if non_finite else 1), ignore)
    shown = class_names or list(map(str, range(len(confusion))))
    pixels = zip(shown, confusion.sum(axis=1), strict=True)
    absent = [name for number, (name, count) in enumerate(pixels) if not count and number != ignore]
    if absent:
        logging.warning(
            "The masks have no pixels of %s. As in mmsegmentation, a class that is not predicted either does not count "
            "in the means.",
            checks.listed(absent),
        )
    metrics = {name: value for name, value in scores.items() if isinstance(value, float)}
    details: dict[str, Any] = {"class_names": class_names, "confusion": confusion}
    details["per_class"] = {name: scores[name] for name in ("iou", "accuracy")}
    counts = {"examples": examples, **({"non_finite": non_finite} if non_finite else {})}
    return Result({**metrics, **counts}, details=details)


def to_classes(scores: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Convert logits `[b, height, width, classes]` or masks to classes of the given size, integers `[b, h, w]`."""
    from keras import ops

    from keras_vit.layers.interpolation import resize_logits

    if scores.ndim == 3:
        nearest = ops.image.resize(scores[..., None], size, interpolation="nearest", data_format="channels_last")
        return ops.convert_to_numpy(nearest)[..., 0].astype(np.int64)
    return ops.convert_to_numpy(ops.argmax(resize_logits(ops.convert_to_tensor(scores), size), axis=-1))


def starts(size: int, crop: int, stride: int) -> list[int]:
    """Return the starts of windows along an axis. The last window ends at the end of the axis."""
    windows = max(size - crop + stride - 1, 0) // stride + 1
    return [max(min(index * stride, size - crop), 0) for index in range(windows)]


def slide(
    scores: Callable[[np.ndarray], np.ndarray], image: np.ndarray, window: tuple[int, int], stride: int
) -> np.ndarray:
    """Return the logits of an image of any size, `[H, W, classes]`, averaged over all windows that contain a pixel.

    `scores` maps windows `[b, *window, C]` to logits `[b, height, width, classes]`. An `image`, `[H, W, C]`, that is
    smaller than a window is padded with zeros.
    """
    from keras import ops

    from keras_vit.layers.interpolation import resize_logits

    height, width, _ = image.shape
    missing = [(0, max(size - given, 0)) for size, given in zip(window, image.shape, strict=False)]
    padded = np.pad(image, [*missing, (0, 0)])
    corners = [(y, x) for y in starts(height, window[0], stride) for x in starts(width, window[1], stride)]
    total: Any = None
    times = np.zeros((*padded.shape[:2], 1), np.float32)
    for first in range(0, len(corners), _AT_A_TIME):
        some = [(slice(y, y + window[0]), slice(x, x + window[1])) for y, x in corners[first : first + _AT_A_TIME]]
        found = in_batches(scores, np.stack([padded[window_slices] for window_slices in some]), _AT_A_TIME)
        for window_slices, logits in zip(some, ops.convert_to_numpy(resize_logits(found, window)), strict=True):
            if total is None:
                total = np.zeros((*padded.shape[:2], logits.shape[-1]), np.float32)
            total[window_slices] += logits
            times[window_slices] += 1
    return (total / times)[:height, :width]
