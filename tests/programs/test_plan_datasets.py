"""Known sizes of data sets that are not on this machine."""

import numpy as np
import pytest

from keras_vit import recipe as recipes
from train.datasets import sizes


def test_known_data():
    assert sizes.size("tfds:imagenet2012", "train[:99%]") == (1_268_355, 1000, None)
    assert sizes.size("tfds:imagenet2012:5.1.0#data_dir='/x'", "validation") == (50_000, 1000, None)
    assert sizes.size("tfds:imagenet21k", "full[51200:]") == (14_145_922, 21_843, None)
    assert sizes.size("tfds:cifar100/x:3.0.2", "test") == (10_000, 100, None)  # not those of "tfds:cifar10"
    assert sizes.size("tfds:oxford_iiit_pet", "train+test") == (3_680 + 3_669, 37, None)
    assert sizes.size("tfds:oxford_flowers102", "train+validation+test") == (2 * 1_020 + 6_149, 102, None)
    assert sizes.size("folder:ADEChallengeData2016/images#masks=x", "train+validation") == (22_210, 150, None)
    assert sizes.size("tfrecord:jft", "train") == (303_000_000, 18_291, None)
    assert sizes.size("tfds:cifar10_1", "test") == sizes.Size()
    assert sizes.size("fashion_mnist", "test") == (10_000, 10, (28, 28, 1))


@pytest.mark.parametrize("source", ["fashion_mnist:/mine", "idx:/mine", "npz:runs/two.npz", "folder:/mine"])
def test_nothing_is_known_of_folders_of_your_own(source):
    assert sizes.size(source, "validation") == sizes.Size()


@pytest.mark.slow
def test_numbers_of_the_caller_come_before_those_of_the_data(tmp_path):
    np.savez(tmp_path / "mine.npz", x_train=np.zeros((6, 8, 8), np.uint8), y_train=np.arange(6) % 3)
    recipe = recipes.Recipe(data=recipes.Data(f"npz:{tmp_path / 'mine.npz'}", pp_train="value_range(-1, 1)"))
    assert sizes.of_recipe(recipe)[:2] == (6, 3)
    assert sizes.of_recipe(recipe, examples=50)[:2] == (50, 3)
    assert sizes.of_recipe(recipe, classes=10)[:2] == (6, 10)
    public = recipes.replace(recipe, {"data.source": "tfds:imagenet2012"})  # is not opened
    assert sizes.of_recipe(public, classes=10) == (1_281_167, 10, None)
