"""An image is never in both parts, neither by its path nor by its content."""

import shutil

import numpy as np
import pytest

from keras_vit import data
from keras_vit.data import separation, splits
from tests.data import example_images, test_parquet, test_tfrecord, test_webdataset


def contents(spec, split):
    """The stored bytes of the images of a split."""
    return [example["image"].numpy() for example in data.open_source(spec, split).examples()]


def folder(root, classes=3, count=20):
    """Classes of images; image `number` of a class is also stored under another name if `number` is divisible by 4."""
    for label in range(classes):
        (root / f"c{label}").mkdir(parents=True)
        for number in range(count):
            pixels = np.full((4, 4, 3), 60 * label + number - (number % 4 == 1), np.uint8)
            (root / f"c{label}" / f"{number}.png").write_bytes(example_images.encode(pixels))
    return f"folder:{root}"


def manifest(root):
    folder(root)
    rows = [f"{path.relative_to(root)},{path.parent.name}" for path in sorted(root.rglob("*.png"))]
    rows += [f"./{row}" for row in rows[::3]]  # named twice
    (root / "list.csv").write_text("\n".join(["path,label", *rows]))
    return f"manifest:{root}/list.csv"


def tar(root):
    root.mkdir()
    test_webdataset.write(root / "a.tar", range(60))
    test_webdataset.write(root / "b.tar", range(0, 60, 4))
    return f"webdataset:{root}"


def arrays(root):
    root.mkdir()
    images, labels = np.arange(60, dtype=np.uint8).repeat(16).reshape(60, 4, 4), np.arange(60) % 3
    np.savez(root / "a.npz", x_train=np.concatenate([images, images[::4]]), y_train=[*labels, *labels[::4]])
    return f"npz:{root}/a.npz"


@pytest.mark.parametrize("write", [folder, manifest, tar, arrays])
def test_equal_images_are_in_the_same_split(write, tmp_path):
    spec = write(tmp_path / "data")
    sizes = {split: size for split, size in data.split_sizes(spec).items() if split != "all"}
    parts = {split: contents(spec, split) for split in ("fit(train)", "validation(train)", *sizes) if split != "train"}
    assert sum(map(len, parts.values())) == sum(sizes.values())  # nothing is lost
    different = [set(map(bytes, part)) for part in parts.values()]
    assert sum(map(len, different)) == len(set.union(*different))  # nothing is on two sides
    fit, chosen = (data.open_source(spec, f"{part}(train)") for part in ("fit", "validation"))
    assert set(chosen.labels()) == set(fit.labels()) == {0, 1, 2}
    assert 0.08 < chosen.num_examples / sizes["train"] < 0.25
    assert chosen.split == "validation(train)" and chosen.class_names == fit.class_names


def test_division_depends_on_neither_the_path_nor_other_images(tmp_path):
    folder(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b" / "c")
    found = [data.open_source(f"folder:{tmp_path}/{place}", "validation(train)") for place in ("a", "b/c")]
    first, second = (source.relative_paths for source in found)
    assert first == second
    (tmp_path / "a/c0/new.png").write_bytes(example_images.encode(np.full((4, 4, 3), 250, np.uint8)))
    now = data.open_source(f"folder:{tmp_path}/a", "validation(train)").relative_paths
    assert len(set(first) ^ set(now)) <= 4  # at a boundary of the test images, and of those that choose


@pytest.mark.slow
@pytest.mark.parametrize("counts", [[70], [9, 1, 30, 30]])
def test_every_seventh_record_is_held_out(counts, tmp_path):
    """Also if the records are sorted by class, and files are small."""
    test_tfrecord.write_numbered(tmp_path, counts, label=lambda number: number // 14)
    spec = f"tfrecord:{tmp_path}#num_classes=5"
    fit, chosen = (data.open_source(spec, f"{part}(train)") for part in ("fit", "validation"))
    found = [test_tfrecord.stored(source) for source in (fit, chosen)]
    assert sorted(sum(found, [])) == list(range(70)) and [len(part) for part in found] == [60, 10]
    assert (fit.num_examples, chosen.num_examples, set(chosen.labels())) == (60, 10, set(range(5)))
    assert sorted(test_tfrecord.values(chosen)) == sorted(found[1])
    train = data.train_batches(fit, "decode|resize(4)", 30).take(2).as_numpy_iterator()
    assert sorted(int(i) for batch in train for i in batch["image"][:, 0, 0, 0]) == sorted(found[0])
    with pytest.raises(ValueError, match=r"too few different examples for the split 'validation\(train\[1:3\]\)'"):
        data.open_source(spec, "validation(train[1:3])")


@pytest.mark.slow
def test_parquet_rows_are_divided_into_fit_and_validation(tmp_path):
    test_parquet.write(tmp_path / "train.parquet", range(28), [number // 14 for number in range(28)], group=10)
    fit, chosen = (data.open_source(f"parquet:{tmp_path}", f"{part}(train)") for part in ("fit", "validation"))
    found = [test_parquet.stored(source) for source in (fit, chosen)]
    assert sorted(sum(found, [])) == list(range(28)) and [*map(len, found)] == [fit.num_examples, chosen.num_examples]
    assert set(chosen.labels()) == {0, 1}


def test_images_in_both_parts_and_with_two_labels_are_counted(tmp_path):
    folder(tmp_path / "train", classes=2)
    for name, source in (("c0/0", "c0/3"), ("c1/1", "c0/7"), ("c1/2", None)):
        (tmp_path / "test" / name).parent.mkdir(parents=True, exist_ok=True)
        image = (
            (tmp_path / f"train/{source}.png").read_bytes()
            if source
            else example_images.encode(example_images.smooth())
        )
        (tmp_path / f"test/{name}.png").write_bytes(image)
    train, test = (data.open_source(f"folder:{tmp_path}", split) for split in ("train", "test"))
    shared, labels = separation.about_same_images([train, test])
    assert shared.startswith("2 of the 3 images in 'test' are also in 'train'") and "test/c1/1.png" in shared
    assert labels.startswith("1 images have different labels") and "test/c1/1.png" in labels
    assert separation.about_same_images([train, train]) == []


def test_only_files_of_equal_sizes_are_compared(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(separation, "_digest", lambda path, *_: read.append(path) or path.encode())
    for name, size in (("a", 3), ("b", 4), ("c", 3), ("d", 0), ("e", 0)):
        (tmp_path / name).write_bytes(b"x" * size)
    paths = [str(tmp_path / name) for name in "abcdef"]
    assert separation.merged(paths, paths) == paths  # the last one does not exist
    assert sorted(read) == [paths[0], paths[2]]
    assert separation.merged(["gs://a", "gs://b"], ["gs://a", "gs://b"]) == ["gs://a", "gs://b"]
    monkeypatch.setattr(separation, "MOST_FILES", 2)
    assert separation.merged(paths, paths) == paths and len(read) == 2


def test_names_of_parts_are_parsed():
    assert splits.part_of("validation(train[:2]+test)") == ("validation", "train[:2]+test")
    assert splits.part_of(" fit(train) ") == ("fit", "train") and splits.part_of("validation") == ("", "validation")
