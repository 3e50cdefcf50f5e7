"""Which images a page shows, by hand."""

import numpy as np
import pytest

from keras_vit.inspection import examples, report_cards


def test_the_surest_mistakes_come_first():
    """Half of the places are for mistakes, the others are spread over what was right."""
    right = np.array([True, False, True, False, True, False, True, True])
    sure = np.array([0.9, 0.6, 0.8, 0.9, 0.7, 0.7, 0.6, 0.55])
    assert examples.choose(4, right, sure, 8) == [3, 5, 0, 7]
    assert examples.choose(8, right, sure, 8) == [3, 5, 1, 0, 2, 4, 6, 7]
    assert examples.choose(6, right[[1, 3, 5]], sure[[1, 3, 5]], 3) == [1, 2, 0]  # nothing was right


def test_without_labels_they_are_spread():
    assert examples.choose(3, None, None, 9) == [0, 4, 8]
    assert examples.choose(5, None, None, 2) == [0, 1]


@pytest.mark.parametrize(
    ("label", "best", "truth"),
    [
        (None, 1, (None, None)),
        (1, 1, ("dog", True)),
        (1, 0, ("dog", False)),
        (1, None, ("dog", None)),
        ([1, 0, 1], 2, ("cat, bird", True)),
        ([1, 0, 1], 1, ("cat, bird", False)),
        ([0, 0, 0], 0, ("none", False)),
    ],
)
def test_the_true_classes_and_whether_the_prediction_is_one_of_them(label, best, truth):
    label = np.array(label) if isinstance(label, list) else label
    assert report_cards._truth(label, best, ("cat", "dog", "bird")) == truth
