"""Test sets with a subset of a model's classes, such as ImageNet-A and ImageNet-R."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from keras_vit.evaluators import classification
from keras_vit.evaluators.class_matching import in_model_classes
from keras_vit.evaluators.evaluation import Context, Result, SplitEvaluator, register

# Classes of both test sets, as class numbers of ILSVRC-2012 from 0, in the order of their WordNet numbers.
# ImageNet-A: https://arxiv.org/abs/1907.07174, ImageNet-R: https://arxiv.org/abs/2006.16241
# fmt: off
IMAGENET_A = (
    6, 11, 13, 15, 17, 22, 23, 27, 30, 37, 39, 42, 47, 50, 57, 70, 71, 76, 79, 89, 90, 94, 96, 97, 99, 105, 107, 108,
    110, 113, 124, 125, 130, 132, 143, 144, 150, 151, 207, 234, 235, 254, 277, 283, 287, 291, 295, 298, 301, 306, 307,
    308, 309, 310, 311, 313, 314, 315, 317, 319, 323, 324, 326, 327, 330, 334, 335, 336, 347, 361, 363, 372, 378, 386,
    397, 400, 401, 402, 404, 407, 411, 416, 417, 420, 425, 428, 430, 437, 438, 445, 456, 457, 461, 462, 470, 472, 483,
    486, 488, 492, 496, 514, 516, 528, 530, 539, 542, 543, 549, 552, 557, 561, 562, 569, 572, 573, 575, 579, 589, 606,
    607, 609, 614, 626, 627, 640, 641, 642, 643, 658, 668, 677, 682, 684, 687, 701, 704, 719, 736, 746, 749, 752, 758,
    763, 765, 768, 773, 774, 776, 779, 780, 786, 792, 797, 802, 803, 804, 813, 815, 820, 823, 831, 833, 835, 839, 845,
    847, 850, 859, 862, 870, 879, 880, 888, 890, 897, 900, 907, 913, 924, 932, 933, 934, 937, 943, 945, 947, 951, 954,
    956, 957, 959, 971, 972, 980, 981, 984, 986, 987, 988,
)
IMAGENET_R = (
    1, 2, 4, 6, 8, 9, 11, 13, 22, 23, 26, 29, 31, 39, 47, 63, 71, 76, 79, 84, 90, 94, 96, 97, 99, 100, 105, 107, 113,
    122, 125, 130, 132, 144, 145, 147, 148, 150, 151, 155, 160, 161, 162, 163, 171, 172, 178, 187, 195, 199, 203, 207,
    208, 219, 231, 232, 234, 235, 242, 245, 247, 250, 251, 254, 259, 260, 263, 265, 267, 269, 276, 277, 281, 288, 289,
    291, 292, 293, 296, 299, 301, 308, 309, 310, 311, 314, 315, 319, 323, 327, 330, 334, 335, 337, 338, 340, 341, 344,
    347, 353, 355, 361, 362, 365, 366, 367, 368, 372, 388, 390, 393, 397, 401, 407, 413, 414, 425, 428, 430, 435, 437,
    441, 447, 448, 457, 462, 463, 469, 470, 471, 472, 476, 483, 487, 515, 546, 555, 558, 570, 579, 583, 587, 593, 594,
    596, 609, 613, 617, 621, 629, 637, 657, 658, 701, 717, 724, 763, 768, 774, 776, 779, 780, 787, 805, 812, 815, 820,
    824, 833, 847, 852, 866, 875, 883, 889, 895, 907, 928, 931, 932, 933, 934, 936, 937, 943, 945, 947, 948, 949, 951,
    953, 954, 957, 963, 965, 967, 980, 981, 983, 988,
)
# fmt: on
SUBSETS: dict[str, tuple[int, ...]] = {"imagenet_a": IMAGENET_A, "imagenet_r": IMAGENET_R}


@register
@dataclasses.dataclass(kw_only=True)
class Subset(SplitEvaluator):
    """Accuracy on a test set with a subset of the classes. The predicted class is the best class of the subset.

    Attributes:
        classes: `"imagenet_a"`, `"imagenet_r"` or class numbers.
        source: The test set, whose class names must be names of the model's classes. A source without names must have
            either the classes of the subset, in this order, or all classes of the model.
        split: Split of the source.
    """

    name: ClassVar = "subset"
    outputs: ClassVar = classification.Classification.outputs
    classes: str | Sequence[int]
    source: str = dataclasses.field()  # required
    split: str = "test"

    def __post_init__(self):
        super().__post_init__()
        self._classes = check_classes(self.classes)

    def check(self, context: Context) -> None:
        if context.predictor.class_names:
            check_largest(self._classes, len(context.predictor.class_names))
        in_model_classes(context.predictor, self.open(context), self._classes)

    def measure(self, context: Context) -> Result:
        opened, predictor = in_model_classes(context.predictor, self.open(context), self._classes), context.predictor
        batches = map(self._relabeled, opened.batches)
        kinds = {"output": context.output, "scores_are": predictor.scores_are}
        scores = restrict(predictor.scores, self._classes)
        result = classification.evaluate(scores, batches, len(self._classes), **kinds)
        names = ["accuracy", "top5", "examples"] + (["non_finite"] if result["non_finite"] else [])
        return Result({name: result[name] for name in names})

    def _relabeled(self, batch: dict) -> dict:
        kept = batch["valid"] > 0
        return {"image": batch["image"][kept], "label": relabel(batch["label"][kept], self._classes)}


def restrict(predict: Callable, classes: np.ndarray) -> Callable:
    """Restrict the scores of a function, `[B, C]`, to the `c` given classes, `[B, c]`, in their order."""

    def predict_some(images: np.ndarray) -> np.ndarray:
        scores = np.asarray(predict(images))
        check_largest(classes, scores.shape[-1])
        return scores[:, classes]

    return predict_some


def relabel(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Convert class numbers `[N]` to indices of `classes`. Raise an error for a class outside the subset."""
    same = labels[:, None] == classes  # [N, c]
    wrong = labels[~same.any(axis=1)]
    if len(wrong):
        raise ValueError(f"Every label must be one of the {len(classes)} classes of the subset. Received: {wrong[0]}.")
    return same.argmax(axis=1)


def check_classes(classes: Sequence[int] | np.ndarray | str) -> np.ndarray:
    """Return the class numbers of a subset, int64 `[c]`, from its name or from numbers."""
    if isinstance(classes, str):
        if classes not in SUBSETS:
            raise ValueError(f"The subset must be one of {', '.join(SUBSETS)}, or numbers. Received: {classes!r}.")
        classes = SUBSETS[classes]
    numbers = np.asarray(classes)
    whole = numbers.ndim == 1 and len(numbers) > 0 and np.issubdtype(numbers.dtype, np.integer)
    if not whole or len(np.unique(numbers)) != len(numbers) or numbers.min() < 0:
        raise ValueError(f"The classes must be different integers of at least 0. Received: {classes!r}.")
    return numbers.astype(np.int64)


def check_largest(classes: np.ndarray, num_classes: int) -> None:
    """Raise an error if a class is not in a model of `num_classes` classes."""
    if num_classes <= classes.max():
        raise ValueError(f"A model of {num_classes} classes has no class {classes.max()}, which the subset contains.")
