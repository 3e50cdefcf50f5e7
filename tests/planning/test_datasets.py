"""Known sizes of data sets that are not on this machine."""

import pytest

from keras_vit.planning import datasets


def test_known_data():
    assert datasets.size("tfds:imagenet2012", "train[:99%]") == (1_268_355, 1000, None)
    assert datasets.size("tfds:imagenet2012:5.1.0#data_dir='/x'", "validation") == (50_000, 1000, None)
    assert datasets.size("tfds:imagenet21k", "full[51200:]") == (14_145_922, 21_843, None)
    assert datasets.size("fashion_mnist", "test") == (10_000, 10, (28, 28, 1))


@pytest.mark.parametrize("source", ["fashion_mnist:/mine", "idx:/mine", "npz:runs/two.npz", "folder:/mine"])
def test_nothing_is_known_of_folders_of_your_own(source):
    assert datasets.size(source, "validation") == datasets.Size()
