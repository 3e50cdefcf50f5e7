import math

import numpy as np
import pytest

from keras_vit.data import splits

SIZES = {"train": 7, "test": 10}


def ranges(split):
    return [(part.name, part.start, part.stop) for part in splits.parse(split, SIZES)]


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train", [("train", 0, 7)]),
        ("train[:50%]", [("train", 0, 4)]),  # 3.5 rounds to even, as in TensorFlow Datasets
        ("train[50%:]", [("train", 4, 7)]),
        ("test[2:5]", [("test", 2, 5)]),
        ("test[-3:]", [("test", 7, 10)]),
        ("test[:-10%]", [("test", 0, 9)]),
        ("test[:999]", [("test", 0, 10)]),
        ("train[:2]+test[90%:]", [("train", 0, 2), ("test", 9, 10)]),
        (" train[ : 2 ] + test ", [("train", 0, 2), ("test", 0, 10)]),
        ("train[:]", [("train", 0, 7)]),
        ("train[0%:100%]", [("train", 0, 7)]),
        ("train[-100%:]", [("train", 0, 7)]),
    ],
)
def test_split_expressions_select_ranges(split, expected):
    assert ranges(split) == expected


def test_usual_names_of_splits_are_recognized():
    assert [splits.named(name) for name in ("Training", "VAL", "dev", "valid", "test", "mine")] == [
        *("train", "validation", "validation", "validation", "test", "mine"),
    ]
    sizes = {"train": 7, "validation": 3, "mine": 2}
    assert splits.parse("val[:2]+test[2:]+Train", sizes)[:2] == (
        *(splits.Part("validation", 0, 2), splits.Part("validation", 2, 3)),
    )
    assert splits.used("val[:2]+mine", sizes) == {"validation", "mine"}
    assert splits.named("val", ["train", "val"]) == "val" and splits.named("test", ["validation", "test"]) == "test"


@pytest.mark.parametrize("percent", range(1, 100, 7))
@pytest.mark.parametrize("size", [3, 100, 1797, 60_000])
def test_complementary_slices_partition_the_split(percent, size):
    sizes = {"train": size}
    starts = [
        (part.start, part.stop)
        for text in (f"train[:{percent}%]", f"train[{percent}%:]")
        for part in _parts_or_nothing(text, sizes)
    ]
    covered = [i for start, stop in starts for i in range(start, stop)]
    assert covered == list(range(size))


def _parts_or_nothing(text, sizes):
    try:
        return splits.parse(text, sizes)
    except ValueError:  # a slice of no example is an error
        return []


def test_agrees_with_tensorflow_datasets():
    tfds = pytest.importorskip("tensorflow_datasets")
    infos = {
        name: tfds.core.SplitInfo(
            name=name, shard_lengths=[size], num_bytes=0, filename_template=tfds.core.ShardedFileTemplate("/tmp", "x")
        )
        for name, size in {"train": 1797, "test": 361}.items()
    }
    split_dict = tfds.core.splits.SplitDict(list(infos.values()))
    for split in ("train[:33%]", "train[33%:67%]", "train[-7%:]", "test[5:-5]", "test[:1%]+train[99%:]", "test[-1%:]"):
        expected = [(i.skip, i.skip + i.take) for i in split_dict[split].file_instructions]
        assert [(p.start, p.stop) for p in splits.parse(split, {"train": 1797, "test": 361})] == expected


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ("trian", ["'trian' does not exist", "'train' (7 examples)", "Did you mean 'train'?"]),
        ("train[5:5]", ["selects no example", "7"]),
        ("train[:1.5]", ["number or a percentage", "1.5"]),
        ("train[:150%]", ["within -100 and 100"]),
        ("train[3]", ["must look like"]),
        ("", ["must look like"]),
    ],
)
def test_errors_name_the_cause(split, words):
    with pytest.raises(ValueError) as error:
        splits.parse(split, SIZES)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("members", "fraction", "held_out"),
    [(7, 0.25, 2), (10, 0.25, 2), (8, 0.1, 1), (3, 0.1, 1), (2, 0.9, 1), (1, 0.5, 0), (9, 0.0, 0)],
)
def test_a_class_is_divided_by_rounding(members, fraction, held_out):
    """At least one of two or more is for testing, and at least one for training."""
    labels = np.repeat(np.arange(3), members)
    keys = [f"class {label}/{index}.png" for index, label in enumerate(labels)]
    found = splits.split_indices(keys, labels, fraction)
    test = found.get("test", np.zeros(0, int))
    assert np.bincount(labels[test], minlength=3).tolist() == [held_out] * 3
    assert sorted([*found["train"], *test]) == sorted(found["all"]) == list(range(3 * members))


@pytest.mark.parametrize("fraction", [-0.01, 1, math.nan])
def test_test_fraction_that_leaves_no_training_data_is_refused(fraction):
    with pytest.raises(ValueError, match=rf"`test_fraction` must be in \[0, 1\). Received: test_fraction={fraction}"):
        splits.split_indices(["a", "b"], np.zeros(2), fraction)


def test_the_division_depends_on_names_only():
    keys, labels = [f"{index}.png" for index in range(20)], np.zeros(20, int)
    order = np.random.default_rng(0).permutation(20)
    first = splits.split_indices(keys, labels, 0.3)
    again = splits.split_indices([keys[index] for index in order], labels, 0.3)
    assert {keys[index] for index in first["test"]} == {keys[order[index]] for index in again["test"]}
