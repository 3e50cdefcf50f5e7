"""A test split for collections that come without one, the same on every machine and on every day."""

import hashlib
from collections.abc import Sequence

import numpy as np


def split_indices(
    keys: Sequence[str], labels: np.ndarray, test_fraction: float, shuffle: bool = True
) -> dict[str, np.ndarray]:
    """Divides examples into "train" and "test", with every class in proportion.

    Which examples are for testing depends on a hash of their keys: on no random number and not on the order in which
    they are listed.

    Args:
        keys: what identifies each example, e.g. its path relative to the folder.
        labels: int [n], or [n, classes] (then the division is over all examples together).
        test_fraction: share of the test split, in [0, 1).
        shuffle: order the indices by the hash, which mixes the classes, so that a slice such as `train[:80%]` is a fair
            sample; otherwise keep the order of the list.

    Returns:
        Indices of "train", "test" and "all". "test" has at least one example of each class of two or more.
    """
    if not 0 <= test_fraction < 1:
        raise ValueError(f"`test_fraction` must be in [0, 1). Received: test_fraction={test_fraction!r}.")
    hashes = [hashlib.sha256(key.encode(errors="surrogateescape")).digest()[:8] for key in keys]
    order = np.argsort(np.array([int.from_bytes(value, "big") for value in hashes], np.uint64), kind="stable")
    groups = labels[order] if labels.ndim == 1 else np.zeros(len(order), np.int64)
    is_test = np.zeros(len(keys), bool)
    for group in np.unique(groups):
        members = order[groups == group]
        count = round(len(members) * test_fraction)
        if test_fraction > 0 and len(members) > 1:
            count = min(max(count, 1), len(members) - 1)
        is_test[members[:count]] = True
    if not shuffle:
        order = np.arange(len(keys))
    indices = {"train": order[~is_test[order]], "test": order[is_test[order]], "all": order}
    return {key: value for key, value in indices.items() if len(value)}
