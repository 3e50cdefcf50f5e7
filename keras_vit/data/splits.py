"""Splits in the notation of TensorFlow Datasets: `train`, `train[:98%]`, `train[100:200]`, `train[:10%]+test[90%:]`.

`validation(train)` contains the images of `train` that choose the best checkpoint, and `fit(train)` the other images.

Data sets without a test split get one, which is a function of the names of the examples.
"""

import dataclasses
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from keras_vit.util import checks

_PART = re.compile(
    r"\s*(?P<name>[\w.\-]+)\s*(?:\[\s*(?P<start>[^:\[\]]*?)\s*(?P<colon>:)\s*(?P<stop>[^:\[\]]*?)\s*\])?\s*"
)
_BOUND = re.compile(r"(-?\d+)\s*(%?)")
_PART_OF = re.compile(r"\s*(fit|validation)\((.*)\)\s*", re.DOTALL)
HELD_OUT = 7  # "validation(train)" has one of so many images of "train", and "fit(train)" the others
# Splits by the names of their folders, of their files, and in lists, all in lower case.
NAMES = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}


@dataclasses.dataclass(frozen=True)
class Part:
    """The examples `start <= i < stop` of the split `name`."""

    name: str
    start: int
    stop: int


def named(name: str, splits: Collection[str] = ()) -> str:
    """Return the usual name of a split: `"validation"` for `"Val"`. A name in `splits` is not changed.

    If `splits` has "validation" but not "test", "validation" is also the split "test".
    """
    usual = name if name in splits else NAMES.get(name.lower(), name)
    return "validation" if usual == "test" and "test" not in splits and "validation" in splits else usual


def used(split: str, splits: Collection[str]) -> set[str]:
    """Return the names of the splits that a split such as `"train[:80%]+val"` uses."""
    matches = map(_PART.fullmatch, str(split).split("+"))
    return {named(match["name"], splits) for match in matches if match is not None}


def part_of(split: str) -> tuple[str, str]:
    """Return `"validation"` or `"fit"` and the divided split, such as `("fit", "train")`; `("", split)` otherwise."""
    match = _PART_OF.fullmatch(str(split))
    return (match[1], match[2]) if match else ("", split)


def parse(split: str, sizes: Mapping[str, int], what: str = "the data set") -> tuple[Part, ...]:
    """Parse a split, one or several parts joined by `+`. `sizes` has the number of examples of each existing split.

    As in TensorFlow Datasets, percentages are rounded to the nearest example. `train[:30%]` and `train[30%:]` therefore
    share no examples, and together they are `train`. An empty part is an error.
    """
    parts = []
    for text in str(split).split("+"):
        match = _PART.fullmatch(text)
        if not match:
            raise ValueError(
                f"A split must look like 'train', 'train[:80%]', 'train[100:200]' or 'train[:10%]+test'. "
                f"Received: {split!r}."
            )
        name = named(match["name"], sizes)
        if name not in sizes:
            raise ValueError(
                f"Split {name!r} does not exist in {what}. It has: "
                f"{', '.join(f'{key!r} ({size:,} examples)' for key, size in sizes.items())}."
                f"{checks.nearest(name, sizes)}"
            )
        start, stop = 0, sizes[name]
        if match["colon"]:
            start = _bound(match["start"], sizes[name], 0, split)
            stop = _bound(match["stop"], sizes[name], sizes[name], split)
        if start >= stop:
            raise ValueError(
                f"Split {text.strip()!r} of {what} selects no examples: {name!r} has {sizes[name]:,} examples, "
                f"but {start:,} <= i < {stop:,} was requested."
            )
        parts.append(Part(name, start, stop))
    return tuple(parts)


def _bound(text: str, size: int, default: int, split: str) -> int:
    if not text:
        return default
    match = _BOUND.fullmatch(text)
    if not match:
        raise ValueError(f"A bound of a split must be a number or a percentage. Received: {text!r} in {split!r}.")
    value, percent = int(match[1]), bool(match[2])
    if percent and abs(value) > 100:
        raise ValueError(f"A percentage of a split must be within -100 and 100. Received: {text!r} in {split!r}.")
    if percent:
        value = round(abs(value) * size / 100) * (1 if value >= 0 else -1)
    if value < 0:
        value += size
    return min(max(value, 0), size)


def hashes(keys: Sequence[str]) -> np.ndarray:
    """Return the hashes of the names of examples, uint64 `[n]`, which determine the splits and the order."""
    values = [hashlib.sha256(checks.composed(key).encode(errors="surrogateescape")).digest()[:8] for key in keys]
    return np.array([int.from_bytes(value, "big") for value in values], np.uint64)


def split_indices(
    keys: Sequence[str] | np.ndarray, labels: np.ndarray, test_fraction: float, shuffle: bool = True
) -> dict[str, np.ndarray]:
    """Return the indices of the splits "train", "test" and "all", stratified by class.

    The split of an example depends on a hash of its key, but not on random numbers or on the order of the list.
    Examples with the same key are in the same split, and count as one example of the smallest of their classes.
    "train" contains at least one example of every class. "test" contains at least one example of every class with two
    or more examples. `shuffle` orders the indices by hash, so that a slice is a random sample. `keys` may be `hashes`.
    """
    if not 0 <= test_fraction < 1:
        raise ValueError(f"`test_fraction` must be in [0, 1). Received: test_fraction={test_fraction!r}.")
    numbers = keys if isinstance(keys, np.ndarray) else hashes(keys)
    order = np.argsort(numbers, kind="stable")
    groups = labels[order] if labels.ndim == 1 else np.zeros(len(order), np.int64)
    is_first = np.diff(numbers[order], prepend=~numbers[order[:1]]) != 0  # of the examples with its key
    groups = np.minimum.reduceat(groups, np.flatnonzero(is_first))
    is_test = np.zeros(len(groups), bool)
    by_group = np.argsort(groups, kind="stable")
    for members in np.split(by_group, np.cumsum(np.unique(groups, return_counts=True)[1])[:-1]):
        count = round(len(members) * test_fraction)
        if test_fraction > 0:
            count = min(max(count, 1), len(members) - 1)
        is_test[members[:count]] = True
    is_test = is_test[np.cumsum(is_first) - 1]  # of each of `order`
    if not shuffle:
        is_test, order = is_test[np.argsort(order)], np.arange(len(keys))
    indices = {"train": order[~is_test], "test": order[is_test], "all": order}
    return {key: value for key, value in indices.items() if len(value)}
