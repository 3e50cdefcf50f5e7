"""Checks of labels, and statistics of values."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.sources import Source, in_parallel
from keras_vit.util import checks
from keras_vit.util.formatting import percent
from keras_vit.util.values import Values

MAX_CLASSES = 2**20
_MAX_DIGITS = 18  # of a class number


def classes_up_to(largest: int, origin: str) -> list[str]:
    """Return the names of the classes of a source without class names: `"0"` to the largest label."""
    if largest >= MAX_CLASSES:
        raise ValueError(
            f"Labels are class numbers from 0, of at most {MAX_CLASSES:,} classes. Received: {largest} for {origin}. "
            "If the labels are identifiers, replace them with names, or with numbers without gaps."
        )
    return [str(number) for number in range(largest + 1)]


def numbered(
    labels: Sequence[str],
    class_names: Sequence[str] | None,
    name: str,
    origin: Callable[[int], str],
    offset: int = 0,
) -> tuple[np.ndarray, list[str]]:
    """Return the class numbers of labels in text form, int32 `[n]`, and the names of the classes.

    If all labels are numbers, they plus `offset` are the class numbers. Otherwise, they are names of classes. Without
    `class_names`, the classes are in alphabetical order. Messages contain `name`, the name of the data set, and
    `origin`, the position of a label.
    """
    found = sorted(set(labels))
    numbers = {label: int(label[: _MAX_DIGITS + 1]) + offset for label in found if label.isdecimal()}
    if class_names is None and found and len(numbers) == len(found):
        largest = max(range(len(labels)), key=lambda index: numbers[labels[index]])
        class_names = classes_up_to(numbers[labels[largest]], origin(largest))
    class_names = found if class_names is None else list(map(checks.composed, class_names))
    if not class_names:
        raise ValueError(f"No example of {name} has a label.")
    known = {label: number for number, label in enumerate(class_names)}
    if len(numbers) == len(found):
        given = {label: number for label, number in numbers.items() if len(label) <= _MAX_DIGITS}
        known = {**known, **given} if offset else {**given, **known}
    unknown = [index for index, label in enumerate(labels) if label not in known]
    if unknown:
        raise ValueError(
            f"The label of {origin(unknown[0])} must be one of {class_names}. Received: {labels[unknown[0]][:100]!r}"
            f"{f' and {len(unknown) - 1:,} more such labels' if unknown[1:] else ''}."
        )
    indices = np.array([known[label] for label in labels], np.int64)
    return check_labels(indices, len(class_names), origin), class_names


def value_names(values: str | Sequence[str]) -> tuple[str, ...]:
    """Return the option `values` of a source, one name or several names, as a tuple."""
    names = (values,) if isinstance(values, str) else tuple(map(str, checks.sequence("values", values, "names")))
    if not all(names) or not 0 < len(names) == len(set(names)):
        raise ValueError(f"`values` must be one or several different names. Received: values={values!r}.")
    return names


def check_labels(labels: np.ndarray, num_classes: int, origin: Callable[[int], str]) -> np.ndarray:
    """Return labels as int32 `[n]` or float32 `[n, classes]`.

    Raises a ValueError that names the `origin` of a label out of range.
    """
    if labels.ndim == 1:
        right = (labels >= 0) & (labels < num_classes)
        return _checked(labels, right, f"0 <= label < {num_classes}, the number of classes", origin).astype(np.int32)
    if labels.shape[1] != num_classes:
        raise ValueError(
            f"Labels of several classes must have one column per class, {num_classes}. Received: {labels.shape}."
        )
    right = ((labels == 0) | (labels == 1)).all(axis=1)
    return _checked(labels, right, "zeros and ones", origin).astype(np.float32)


def check_values(values: np.ndarray, names: Sequence[str], origin: Callable[[int], str]) -> np.ndarray:
    """Return values `[n]` or `[n, k]` as float64 `[n, k]`.

    Raises a ValueError that names the `origin` of a value that is not finite in float32.
    """
    values = values.reshape(len(values), -1)
    if values.shape[1] != len(names):
        raise ValueError(f"Expected {values.shape[1]} names, one per value. Received: {', '.join(names)}.")
    values = values.astype(np.float64)
    right = np.all(abs(values) <= np.finfo(np.float32).max, axis=1)
    return _checked(values, right, "finite numbers", origin)


def _checked(labels: np.ndarray, right: np.ndarray, expected: str, origin: Callable[[int], str]) -> np.ndarray:
    wrong = np.flatnonzero(~right)
    if len(wrong):
        first = int(wrong[0])
        raise ValueError(
            f"Labels out of range: expected {expected}. Received: {labels[first]} for {origin(first)}"
            f"{f' and {len(wrong) - 1:,} more' if len(wrong) > 1 else ''}."
        )
    return labels


def values_of(source: Source) -> Values:
    """Return the names, means and standard deviations of a source's values.

    The statistics are computed in float64 from one pass over the labels, without decoding images. The result depends
    neither on the order of the examples nor on the number of files.

    Args:
        source: Result of `open_source`, usually for the training split. Its labels must be values.

    Raises:
        ValueError: If the labels are classes, or a value is the same for all examples.

    Example:
    >>> values_of(open_source("manifest:images/ages.csv", "all", values="age"))
    Values(names=('age',), mean=(39.0,), deviation=(8.0,))
    """
    if not source.kind.has_values:
        raise ValueError(
            f"Labels must be values. Received: {source}, whose labels are of the kind {source.label_kind!r}."
        )
    labels = source.labels()
    columns = labels.astype(np.float64).T  # [k, n]
    for name, column in zip(source.value_names, columns, strict=True):
        if column.min() == column.max():
            raise ValueError(
                f"A value must differ between examples to be learned. Received: {name!r} is {column[0]:g} for all "
                f"{len(column):,} examples of {source.name}[{source.split}]. Leave it out of values=."
            )
    mean = [math.fsum(column) / len(column) for column in columns]
    variance = [math.fsum((column - center) ** 2) / len(column) for column, center in zip(columns, mean, strict=True)]
    deviation = list(map(math.sqrt, variance))
    rounded = "labels and predictions" if labels.dtype == np.float32 else "predictions"
    for name, center, width in zip(source.value_names, mean, deviation, strict=True):
        if 2**-24 * abs(center) > width / 1000:
            logging.warning(
                "%s has the mean %g and the standard deviation %g, but float32 rounds its %s to multiples of %g. "
                "Subtract a constant, such as the mean, from the numbers.",
                *(name, center, width, rounded, np.spacing(np.float32(abs(center)))),
            )
    return Values(source.value_names, tuple(mean), tuple(deviation))


def check_masks(source: Source, limit: int = 500) -> None:
    """Log the classes that have no pixels in the first masks of a source.

    Raises a ValueError if these masks have ignored pixels but at most one class, such as masks of 0 and 255.
    """

    def count(item: tuple[str, dict[str, tf.Tensor]]) -> np.ndarray:
        try:
            mask = np.minimum(source.load(item[1])["mask"].numpy(), source.num_classes)
        except tf.errors.OpError:  # reported when the image is used
            mask = np.zeros(0, np.int64)
        return np.bincount(mask.ravel(), minlength=source.num_classes + 1)

    counts = np.sum(list(in_parallel(count, itertools.islice(source.items(), limit))), axis=0)
    checked = f"{min(limit, source.num_examples):,} of {source.num_examples:,} masks of {source.name}[{source.split}]"
    absent = [name for name, pixels in zip(source.class_names, counts, strict=False) if not pixels]
    present = [name for name in source.class_names if name not in absent]
    if counts[-1] and len(present) < 2:
        raise ValueError(
            f"Expected pixels of two or more classes. Received: {checked} with {', '.join(present) or 'no class'} and "
            f"{percent(float(counts[-1] / counts.sum()))} ignored pixels. Is 255 the foreground? Then add "
            "#foreground=255 to the folder or list, so that 255 is class 1. Otherwise, write class numbers to masks."
        )
    if absent:
        logging.warning("Classes without pixels in %s: %s.", checked, checks.listed(absent))
