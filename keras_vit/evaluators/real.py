"""ImageNet ReaL: the validation images with all labels that apply, as people judged."""

import json
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from keras_vit.evaluators.features import collect

_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")


def evaluate(predict: Callable, batches: Iterable[dict], labels: Sequence[Iterable[int]] | None = None) -> dict:
    """Accuracy where each image has a set of right answers.

    Args:
        predict: Takes images and returns scores `[B, classes]`.
        batches: Yields dictionaries with "image", "label" and, where rows are padding, "mask".
        labels: The set of right classes of each image, in the order of the batches. None takes "label" of the batches,
            multi-hot rows `[B, classes]`.

    Returns:
        `"accuracy"`: share of images whose best class is one of the right ones, and `"examples"`, their number. Images
        without a right answer are left out, as the paper has it.

    References:
        Beyer et al. 2020, "Are we done with ImageNet?", https://arxiv.org/abs/2006.07159
    """
    scores, truth = collect(predict, batches)
    if labels is not None and len(labels) != len(scores):
        raise ValueError(f"A set of labels for each of the {len(scores)} images is expected. Received: {len(labels)}.")
    if labels is None and truth.ndim != 2:
        raise ValueError("ReaL needs several labels an image: multi-hot labels [N, classes], or the file of labels.")
    sets = [set(np.flatnonzero(row)) for row in truth] if labels is None else [set(some) for some in labels]
    finite = np.isfinite(scores).all(axis=1)
    predicted = np.where(finite, scores.argmax(axis=1), -1)  # a row of NaN answers nothing
    answers = [int(best) in right for best, right in zip(predicted, sets, strict=True) if right]
    if not answers:
        raise ValueError("There is nothing to evaluate: no image has a label.")
    return {"accuracy": float(np.mean(answers)), "examples": len(answers)}


def read_labels(path: str) -> list[list[int]]:
    """Reads `real.json` of https://github.com/google-research/reassessed-imagenet.

    Args:
        path: The file: a JSON list that holds for each validation image, in the order of their numbers, a list of
            classes.

    Returns:
        A list of classes for each validation image.

    Raises:
        ValueError: If the file cannot be read or is something else.
    """
    try:
        with open(path, encoding="utf-8") as file:
            labels = json.load(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"The labels of ImageNet ReaL cannot be read from {path!r}: {error}") from error
    if not isinstance(labels, list) or not all(isinstance(some, list) for some in labels):
        raise ValueError(f"{path} must hold a list of lists of class numbers, as `real.json` does.")
    if not all(type(number) is int and number >= 0 for some in labels for number in some):
        raise ValueError(f"{path} must hold lists of class numbers, integers of at least 0.")
    return labels


def check_labels(labels: Sequence[Sequence[int]], num_classes: int, path: str) -> None:
    """Refuses labels that a model of `num_classes` classes has no scores for.

    Raises:
        ValueError: If there is one.
    """
    largest = max((number for some in labels for number in some), default=0)
    if largest >= num_classes:
        raise ValueError(f"{path} names the class {largest}, which a model of {num_classes} classes does not have.")


def select(labels: list[list[int]], names: Sequence[str], path: str) -> list[list[int]]:
    """The labels of some images.

    Args:
        labels: Of all validation images, in the order of their numbers.
        names: Paths of the images to evaluate, such as `"val/n01440764/ILSVRC2012_val_00000293.JPEG"`, in their order.
        path: The file of the labels, for messages.

    Returns:
        A list of classes for each of these images.

    Raises:
        ValueError: If a name holds no number, or one that is too large.
    """
    found = [_NUMBER.search(name) for name in names]
    if None in found:
        name = names[found.index(None)]
        raise ValueError(f"Image files must be named ILSVRC2012_val_00000001.JPEG and so on. Received: {name!r}.")
    numbers = [int(match[1]) for match in found]
    if max(numbers, default=0) > len(labels):
        raise ValueError(f"{path} has labels of {len(labels)} images. Received: an image of number {max(numbers)}.")
    return [labels[number - 1] for number in numbers]
