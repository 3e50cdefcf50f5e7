"""Fingerprints: equal for equal data at any path, and differences are named."""

import json
import shutil

import numpy as np
import pytest

from keras_vit import data
from keras_vit.data import fingerprint
from keras_vit.data.readers import record_index
from keras_vit.data.sources import ArraySource, FileSource, MaskFileSource
from keras_vit.util import source_specs
from train.datasets import writer


@pytest.fixture
def folder(tmp_path):
    """Two classes of ten files in each of two splits; sizes count from 1."""
    for split in ("train", "test"):
        for class_name in ("cat", "dog"):
            (tmp_path / "images" / split / class_name).mkdir(parents=True)
            for number in range(10):
                (tmp_path / "images" / split / class_name / f"{class_name}{number}.jpg").write_bytes(
                    b"x" * (number + 1)
                )
    return tmp_path / "images"


def fingerprints(folder):
    found = {split: fingerprint.fingerprint(data.open_source(f"folder:{folder}", split)) for split in ("train", "test")}
    return json.loads(json.dumps(found))


def differences(folder, change):
    before = fingerprints(folder)
    change()
    return fingerprint.changes(before, fingerprints(folder))


def test_copy_in_another_directory_has_the_same_fingerprint(folder, tmp_path, monkeypatch):
    before = fingerprints(folder)
    shutil.copytree(folder, tmp_path / "elsewhere" / "images")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert fingerprints("images") == before
    assert fingerprint.changes(before, fingerprints("images/")) == []


def test_changed_classes_are_reported(folder):
    cats = folder / "train" / "cat"
    expected = "other images or another order in the split 'train': cat ({} -> {} files)"
    assert differences(folder, lambda: (cats / "new.jpg").write_bytes(b"")) == [expected.format(10, 11)]
    assert differences(folder, (cats / "new.jpg").unlink) == [expected.format(11, 10)]
    assert differences(folder, lambda: (cats / "cat3.jpg").write_bytes(b"other")) == [expected.format(10, 10)]
    moved = folder / "train" / "dog" / "cat7.jpg"
    assert differences(folder, lambda: (cats / "cat7.jpg").rename(moved)) == [
        "other images or another order in the split 'train': cat (10 -> 9 files), dog (10 -> 11 files)"
    ]


def test_order_of_files_changes_the_fingerprint(folder):
    paths, labels = [str(path) for path in sorted(folder.rglob("*.jpg"))], np.zeros(40, np.int32)
    before, after = (
        {"train": fingerprint.fingerprint(FileSource("images", "train", order, labels, ["a"]))}
        for order in (paths, paths[::-1])
    )
    assert "order" in fingerprint.changes(before, after)[0]


def test_changed_label_in_a_manifest_is_reported(tmp_path):
    lines = ["path,label,split"] + [f"{number}.jpg,{number % 2},train" for number in range(4)]
    path = tmp_path / "list.csv"

    def write():
        path.write_text("\n".join(lines))
        return {"train": fingerprint.fingerprint(data.open_source(f"manifest:{path}"))}

    before = write()
    lines[3] = "2.jpg,1,train"
    assert fingerprint.changes(before, write()) == [
        "other images or another order in the split 'train': 0 (2 -> 1 files), 1 (2 -> 3 files)"
    ]


def test_values_and_masks_change_the_fingerprint(tmp_path):
    found = []
    for age in (31, 32):
        (tmp_path / "ages.csv").write_text(f"path,age\n1.jpg,{age}\n2.jpg,40\n3.jpg,50\n")
        source = data.open_source(f"manifest:{tmp_path}/ages.csv#values=age", "all")
        found.append(fingerprint.fingerprint(source)["digest"])
        (tmp_path / "1.png").write_bytes(b"x" * age)
        masks = np.array([str(tmp_path / "1.png")])
        source = MaskFileSource("folder:x", "all", ["1.jpg"], masks, ["a", "b"])
        found.append(fingerprint.fingerprint(source)["digest"])
    assert len(set(found)) == 4


@pytest.mark.parametrize(("number", "more"), [(5, ""), (7, " and 2 more")])
def test_at_most_five_changed_classes_are_reported(number, more):
    before, now = (
        {"train": {"digest": text, "classes": dict.fromkeys("abcdefg"[:number], text), "counts": {"a": count}}}
        for text, count in (("x", 1), ("y", 2))
    )
    (text,) = fingerprint.changes(before, now)
    named = [f"{name} (0 -> 0 files)" for name in "bcde"]
    assert text.partition(": ")[2] == ", ".join(["a (1 -> 2 files)", *named]) + more


def test_arrays_are_compared_by_content():
    """Files of arrays keep their size when labels are exchanged."""
    images, labels = np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 0, 1], np.int32)
    other = images.copy()
    other[3, 7, 7] = 1
    before = {"train": fingerprint.fingerprint(ArraySource("a", "train", images, labels, ["a", "b"]))}
    for changed in ((other, labels), (images, labels[::-1])):
        now = {"train": fingerprint.fingerprint(ArraySource("b", "train", *changed, ["a", "b"]))}
        assert fingerprint.changes(before, now) == ["other images or another order in the split 'train'"]
    assert not fingerprint.changes(
        before, {"train": fingerprint.fingerprint(ArraySource("b", "train", images.copy(), labels.copy(), ["a", "b"]))}
    )


@pytest.mark.parametrize("index", [True, False])
def test_fingerprint_covers_record_files_and_slices(index, tmp_path):
    paths = writer.write_tfrecords(data.open_source("digits", "train[:8]"), str(tmp_path), "train", 2)
    spec = f"tfrecord:{tmp_path}#index={index}"
    parts = [fingerprint.fingerprint(data.open_source(spec, f"train[{part}]")) for part in (":2", "2:4", ":3")]
    assert len({part["digest"] for part in parts}) == 3  # of the same file
    before = {"train": fingerprint.fingerprint(data.open_source(spec))}
    assert fingerprint.changes(before, {"train": fingerprint.fingerprint(data.open_source(spec))}) == []
    (tmp_path / "dataset_info.json").unlink()
    shutil.copy(paths[0], paths[1])
    with open(paths[1], "ab") as file:
        file.write(b"\0" * 16)  # an empty record
    record_index.write(paths[1])
    now = {"train": fingerprint.fingerprint(data.open_source(f"{spec}&num_classes=10"))}
    (changed,) = fingerprint.changes(before, now)
    assert changed == "other images or another order in the split 'train'"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("digits", "digits"),
        ("folder:images", "folder:{here}/images"),
        ("folder:../images/#test_fraction=0.5", "folder:{above}/images#test_fraction=0.5"),
        ("manifest:a.csv#root=b&separator=','", "manifest:{here}/a.csv#root={here}/b&separator=','"),
        ("tfrecord:x/train-*", "tfrecord:{here}/x/train-*"),
        ("tfrecord:gs://bucket/train-*", "tfrecord:gs://bucket/train-*"),
        ("tfrecord:file:///x/train-*", "tfrecord:/x/train-*"),
        ("tfds:cifar10#data_dir=d", "tfds:cifar10#data_dir={here}/d"),
        ("vtab:dtd", "vtab:dtd"),
        ("fashion_mnist", "fashion_mnist"),
        ("fashion_mnist:f", "fashion_mnist:{here}/f"),
    ],
)
def test_relative_paths_become_absolute(given, expected, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    expected = expected.format(here=tmp_path / "here", above=tmp_path)
    assert source_specs.absolute(given) == source_specs.absolute(expected) == expected


def test_existing_data_sets_are_found(tmp_path):
    (tmp_path / "train-1").write_bytes(b"")
    for there in (
        "digits",
        "tfds:cifar10",
        f"folder:file://{tmp_path}",
        f"tfrecord:{tmp_path}/train-*",
        "npz:gs://a/b.npz",
    ):
        assert source_specs.exists(there)
    for missing in (f"folder:{tmp_path}/x", f"folder:file://{tmp_path}/x", f"manifest:{tmp_path}/a.csv#root=b"):
        assert not source_specs.exists(missing)
