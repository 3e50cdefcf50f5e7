"""`train.make_tfrecords` with a user's command lines, in the process of the test."""

import pathlib

import pytest

from keras_vit import data
from tests.data import example_images
from tests.programs import call, load
from train.datasets import writer


def make_tfrecords(folder, output, **flags):
    flags = {"splits": [], "shards": 0, "seed": 0, "on_bad_image": "error", **flags}
    return call("train.make_tfrecords", data=f"folder:{folder}", output=str(output), **flags)


@pytest.mark.slow
def test_make_tfrecords_writes_all_splits(folder, tmp_path):
    output = tmp_path / "out"
    with pytest.raises(data.UnreadableImageError, match="bad.jpg"):
        make_tfrecords(folder, tmp_path / "strict")
    assert make_tfrecords(folder, output, shards=3, on_bad_image="skip") == 0
    names = sorted(path.name for path in output.iterdir())
    expected = [
        f"{split}-{i:05d}-of-00003{end}" for split in ("test", "train") for i in range(3) for end in ("", ".idx")
    ]
    assert names == ["dataset_info.json", *expected]
    assert sum(data.split_sizes(f"tfrecord:{output}").values()) == 34  # 35 and one that cannot be read


@pytest.mark.slow
def test_make_tfrecords_writes_few_files_for_few_images(tmp_path):
    make_tfrecords(example_images.folder(tmp_path / "p"), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").glob("t*1")) == [
        "test-00000-of-00001",
        "train-00000-of-00001",
    ]
    make_tfrecords(example_images.folder(tmp_path / "few", count=2), tmp_path / "single", shards=9)
    assert len(list((tmp_path / "single").glob("train-*-of-00003"))) == 3  # one image each


def test_a_file_has_up_to_a_thousand_examples_unless_there_would_be_too_many_files():
    shards = load("train.make_tfrecords").default_shards
    sizes = (0, 1, 1_000, 1_001, 1_023_001, 1_024_001, 10**9)
    assert [shards(size) for size in sizes] == [1, 1, 1, 2, 1_024, 1_024, 1_024]


def test_make_tfrecords_writes_whole_splits(tmp_path):
    with pytest.raises(ValueError, match="must be whole splits"):
        call("train.make_tfrecords", data="digits", output=str(tmp_path), splits=["train[:10]"])


def test_indices_of_existing_files_are_written(tmp_path):
    digits = data.open_source("digits", "test[:30]")
    paths = writer.write_tfrecords(digits, str(tmp_path), "test", 3)
    indices = [pathlib.Path(f"{path}.idx") for path in paths]
    expected = [index.read_text() for index in indices]
    for index in indices:
        index.unlink()
    assert call("train.make_tfrecords", output=str(tmp_path), index_only=True) == 0
    assert [index.read_text() for index in indices] == expected
    for wrong in ({"data": "digits", "output": str(tmp_path)}, {}):
        with pytest.raises(ValueError, match="--index_only and --output"):
            call("train.make_tfrecords", index_only=True, **wrong)
