"""Class numbers of a model for the classes of data, which are matched by name."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from absl import logging

from keras_vit.evaluators.dataset import EvaluationData, renumber
from keras_vit.outputs import of
from keras_vit.util import checks
from keras_vit.zoo.labels import imagenet_classes

if TYPE_CHECKING:
    from keras_vit.inference import Predictor


def in_model_classes(predictor: "Predictor", opened: EvaluationData, part: np.ndarray | None = None) -> EvaluationData:
    """Convert the labels of a split to class numbers of the model, for one pass over the data.

    Classes are matched by their names. Images of classes that the model lacks are ignored. If the data or the model
    has only numbers as class names, the data must have all classes of the model, or the model's classes `part`, in
    the same order.
    """
    known, card = tuple(predictor.class_names or ()), predictor.card
    names = tuple(opened.class_names or map(str, range(opened.num_classes)))
    in_order = tuple(range(len(known or names)) if part is None or len(part) != len(names) else part.tolist())
    of_the_data = tuple(card.data.get("class_names", ()))  # names in training, if the model has new names
    imagenet = imagenet_classes(len(known)) if len(known) in (1000, 21_843) else ()
    identifiers = tuple(identifier for identifier, _ in imagenet) if known == tuple(n for _, n in imagenet) else ()
    numbers = np.asarray(_class_numbers(names, (known, of_the_data, identifiers), in_order) if known else in_order)
    whole = list(range(len(known or names)))
    if numbers.tolist() == whole:
        return opened
    if of(opened.label_kind).is_independent and sorted(numbers) != whole:
        shown = f"{_some(known)}. Received: {_some(names)}"
        raise ValueError(f"Data with several labels must have all of the model's {len(known)} classes: {shown}.")
    batches, originals = map(functools.partial(renumber, numbers), opened.batches), opened.originals
    count = len(known) or int(numbers.max()) + 1
    if originals is not None:
        opened = dataclasses.replace(
            opened, originals=lambda pp: map(functools.partial(renumber, numbers), originals(pp))
        )
    return dataclasses.replace(opened, batches=batches, num_classes=count, class_names=known or None)


@functools.lru_cache  # logs its warnings once
def _class_numbers(
    names: tuple[str, ...], known: tuple[tuple[str, ...], ...], in_order: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the model's class number for each class of the data, or -1 if the model does not have the class.

    Args:
        names: Names of the classes of the data.
        known: Alternative names of the model's classes.
        in_order: Class numbers for data or models without names.
    """
    shown = f"{_some(known[0])}. Received: {_some(names)}"
    for some in known:
        numbers = tuple(checks.class_numbers(names, some).tolist())
        unknown = [name for name, number in zip(names, numbers, strict=True) if number < 0]
        moved = any(number not in (-1, index) for index, number in enumerate(numbers))
        if moved and names == tuple(map(str, range(len(names)))):  # data without names, or numbers as names
            raise ValueError(f"The model's classes have other numbers, so the data must have class names: {shown}.")
        if len(unknown) < len(names):
            if unknown:
                shown = _some(unknown)
                logging.warning("The model does not have these classes; their images are not counted: %s.", shown)
            return numbers
    if not any(all(name.removeprefix("LABEL_").isdecimal() for name in some) for some in (names, known[0])):
        raise ValueError(
            f"The data must have classes of the model: {shown}. Rename the classes of the data, or pass the model's "
            "classes the same names: --class_names=FILE (not for an artifact)."
        )
    if len(names) != len(in_order):
        raise ValueError(f"The data must have the model's {len(known[0])} classes, not {len(names)}: {shown}.")
    logging.warning("The classes have other names than the model's and are compared by their numbers: %s.", shown)
    return in_order


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
