"""The part of a folder that is held out for testing, by hand."""

import math

import numpy as np
import pytest

from keras_vit.data import holdout


@pytest.mark.parametrize(
    ("members", "fraction", "held_out"),
    [
        (7, 0.25, 2),
        (10, 0.25, 2),
        (8, 0.1, 1),
        (3, 0.1, 1),
        (2, 0.9, 1),
        (40, 0.01, 1),
        (40, 0.99, 39),
        (1, 0.5, 0),
        (9, 0.0, 0),
    ],
)
def test_a_class_is_divided_by_rounding(members, fraction, held_out):
    """At least one of two or more is for testing, and at least one for training."""
    labels = np.repeat(np.arange(3), members)
    keys = [f"class {label}/{index}.png" for index, label in enumerate(labels)]
    found = holdout.split_indices(keys, labels, fraction)
    test = found.get("test", np.zeros(0, int))
    assert np.bincount(labels[test], minlength=3).tolist() == [held_out] * 3
    assert sorted([*found["train"], *test]) == sorted(found["all"]) == list(range(3 * members))


@pytest.mark.parametrize("fraction", [-0.01, 1, math.nan])
def test_a_fraction_that_leaves_nothing_for_training(fraction):
    with pytest.raises(ValueError, match=rf"`test_fraction` must be in \[0, 1\). Received: test_fraction={fraction}"):
        holdout.split_indices(["a", "b"], np.zeros(2), fraction)


def test_the_division_depends_on_names_only():
    keys, labels = [f"{index}.png" for index in range(20)], np.zeros(20, int)
    order = np.random.default_rng(0).permutation(20)
    first = holdout.split_indices(keys, labels, 0.3)
    again = holdout.split_indices([keys[index] for index in order], labels, 0.3)
    assert {keys[index] for index in first["test"]} == {keys[order[index]] for index in again["test"]}
