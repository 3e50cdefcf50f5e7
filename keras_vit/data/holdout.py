"""A deterministic test split for data sets without a test split."""

import hashlib
from collections.abc import Sequence

import numpy as np

from keras_vit.util import checks


def split_indices(
    keys: Sequence[str], labels: np.ndarray, test_fraction: float, shuffle: bool = True
) -> dict[str, np.ndarray]:
    """Return the indices of the splits "train", "test" and "all", stratified by class.

    The split of an example depends on a hash of its key, but not on random numbers or on the order of the list.
    Examples with the same key are in the same split, and count as one example of the smallest of their classes.
    "train" contains at least one example of every class. "test" contains at least one example of every class with two
    or more examples. `shuffle` orders the indices by hash, so that a slice is a fair sample.
    """
    if not 0 <= test_fraction < 1:
        raise ValueError(f"`test_fraction` must be in [0, 1). Received: test_fraction={test_fraction!r}.")
    hashes = [hashlib.sha256(checks.composed(key).encode(errors="surrogateescape")).digest()[:8] for key in keys]
    numbers = np.array([int.from_bytes(value, "big") for value in hashes], np.uint64)
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
