"""ImageNet ReaL: the validation images, relabeled by people with all classes that apply."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

import numpy as np

from keras_vit.evaluators.class_matching import in_model_classes
from keras_vit.evaluators.dataset import EvaluationData, collect
from keras_vit.evaluators.evaluation import Context, Result, SplitEvaluator, register
from keras_vit.outputs import of
from keras_vit.util import checks, file_io

_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")


@register
@dataclasses.dataclass(kw_only=True)
class Real(SplitEvaluator):
    """Accuracy on ImageNet ReaL, see `evaluate`.

    Attributes:
        source: The validation images with multi-hot labels (`"tfds:imagenet2012_real#label=real_label"`). With
            `labels`, the images may have any labels.
        split: Split of the source.
        labels: Path of `real.json`. The image files must have ImageNet's names.
    """

    name: ClassVar = "real"
    outputs: ClassVar = ("softmax", "sigmoid", "scores")
    label_kinds: ClassVar = ("class", "classes")
    source: str = dataclasses.field()  # required
    split: str = "validation"
    labels: str | None = None

    def __post_init__(self):
        super().__post_init__()
        checks.optional_text("labels", self.labels)
        self._labels = None if self.labels is None else read_labels(self.labels)

    def check(self, context: Context) -> None:
        opened = self.open(context)
        if self._labels is not None:
            self._select(opened)
            classes = len(context.predictor.class_names or ())
            largest = max((number for some in self._labels for number in some), default=0)
            if classes and largest >= classes:
                raise ValueError(
                    f"{self.labels} contains the class {largest}, which a model of {classes} classes does not have."
                )
            return
        if not of(in_model_classes(context.predictor, opened).label_kind).is_independent:
            raise ValueError(f"ReaL needs several labels per image, or labels=. Received: source={self.source!r}.")

    def measure(self, context: Context) -> Result:
        opened = self.open(context)
        opened = in_model_classes(context.predictor, opened) if self._labels is None else opened
        return Result(evaluate(context.predictor.scores, opened.batches, self._select(opened)))

    def _select(self, opened: EvaluationData) -> list[list[int]] | None:
        if self._labels is None:
            return None
        if opened.names is None:
            raise ValueError(f"With labels=, the images must be files with names. Received: source={self.source!r}.")
        return select(self._labels, opened.names, str(self.labels))


def evaluate(predict: Callable, batches: Iterable[dict], labels: Sequence[Iterable[int]] | None = None) -> dict:
    """Measure the accuracy on images with a set of correct classes each.

    Args:
        predict: Function from images to scores `[B, classes]`.
        batches: Iterable of dictionaries with "image", "label" and, if some rows are padding, "valid".
        labels: Correct classes of each image, in the order of the batches. By default, the classes come from "label" in
            the batches, which must be multi-hot rows `[B, classes]`.

    Returns:
        `"accuracy"`, the fraction of images whose predicted class is correct, and `"examples"`, the number of images.
        As in the paper, images without a correct class are ignored. `"non_finite"`, the number of images with NaN or
        infinity, which count as wrong, is missing if it is 0.

    References:
        Beyer et al. 2020, "Are we done with ImageNet?", https://arxiv.org/abs/2006.07159
    """
    scores, truth = collect(predict, batches)
    if labels is not None and len(labels) != len(scores):
        raise ValueError(f"Expected a set of labels for each of the {len(scores)} images. Received: {len(labels)}.")
    if labels is None and truth.ndim != 2:
        raise ValueError("ReaL needs several labels per image: multi-hot labels [N, classes], or the file real.json.")
    sets = [set(row) for row in (map(np.flatnonzero, truth) if labels is None else labels)]
    finite = np.isfinite(scores).all(axis=1)
    predicted = np.where(finite, scores.argmax(axis=1), -1)  # a row of NaN predicts no class
    correct = [int(best) in right for best, right in zip(predicted, sets, strict=True) if right]
    if not correct:
        raise ValueError("There is nothing to evaluate: no image has a label.")
    non_finite = {} if finite.all() else {"non_finite": int((~finite).sum())}
    return {"accuracy": float(np.mean(correct)), "examples": len(correct), **non_finite}


def read_labels(path: str) -> list[list[int]]:
    """Read the classes of each image from `real.json` of https://github.com/google-research/reassessed-imagenet."""
    try:
        labels = file_io.read_json(path, list)
    except (OSError, ValueError) as error:
        raise ValueError(f"The labels of ImageNet ReaL cannot be read from {path!r}: {error}") from error
    if not all(isinstance(some, list) and all(type(one) is int and one >= 0 for one in some) for some in labels):
        raise ValueError(f"{path} must be a list of lists of class numbers of at least 0, like `real.json`.")
    return labels


def select(labels: list[list[int]], names: Sequence[str], path: str) -> list[list[int]]:
    """Return the classes of images whose paths contain the numbers of ImageNet's validation images."""
    numbers = []
    for name in names:
        match = _NUMBER.search(name)
        if match is None:
            raise ValueError(f"Image files must be named ILSVRC2012_val_00000001.JPEG and so on. Received: {name!r}.")
        numbers.append(int(match[1]))
    if max(numbers, default=0) > len(labels):
        raise ValueError(f"{path} has labels of {len(labels)} images. Received: an image of number {max(numbers)}.")
    return [labels[number - 1] for number in numbers]
