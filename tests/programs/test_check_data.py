"""The programs that check data sets, called with a user's command lines in the process of the test."""

import json

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from tests.data import example_images
from tests.programs import call, load
from train.datasets import audit


@pytest.mark.slow
def test_check_data_prints_counts_and_problems(folder, tmp_path, capsys):
    sheet = tmp_path / "sheet.png"
    pp = "decode_jpeg_and_inception_crop(20)|flip_lr|value_range(-1, 1)"
    code = call(
        "train.check_data",
        data=f"folder:{folder}",
        splits=["all"],
        sheet=str(sheet),
        sheet_count=10,
        preprocess=pp,
        json=True,
    )
    assert code == 1  # there are problems to fix
    results = json.loads(capsys.readouterr().out)
    assert results["splits"]["all"]["examples"] == 35
    assert results["splits"]["all"]["per_class"] == [11, 12, 11]
    assert results["splits"]["all"]["heights"] == [20, 25, 30]
    assert list(results["unreadable"]) == [f"{folder}/cat/bad.jpg"]
    assert results["in_several_splits"] == []
    (pair,) = results["same_image_other_label"]
    assert sorted(pair) == [f"all: {folder}/cat/1.png", f"all: {folder}/dog/copy.png"]
    drawn = tf.io.decode_png(sheet.read_bytes())
    assert [len(row) for row in results["sheet"]] == [4, 4, 2] and set(results["sheet"][0]) <= {"cat", "dog", "eel"}
    assert drawn.shape == (3 * 22, 4 * 22, 3)  # ten images in rows of four, with a border


@pytest.mark.slow
def test_check_data_finds_images_in_several_splits(tmp_path, capsys):
    example_images.folder(tmp_path / "train")
    example_images.folder(tmp_path / "test", count=2)  # the same first images
    assert call("train.check_data", data=f"folder:{tmp_path}", splits=[], json=False, sheet=None) == 1
    text = capsys.readouterr().out
    assert "train: minimum 24 x 20, median 24 x 25, maximum 24 x 30 pixels" in text  # width x height
    assert "in several splits: 6" in text and f"{tmp_path}/train/cat/0.jpg" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["cat", "2", "11"] in lines or ["cat", "11", "2"] in lines


def test_median_size_and_at_most_twenty_problems_are_reported():
    program = load("train.check_data")
    assert program.spread([9, 1, 2]) == [1, 2, 9]
    assert program.listing("a", ["x"] * 20) == ["a: 20", *["  x"] * 20]
    assert program.listing("a", ["x"] * 1021) == ["a: 1,021", *["  x"] * 20, "  and 1,001 more (--json lists all)"]


def test_only_a_class_without_training_images_is_marked():
    """The first split is that of the training; another may lack a class."""
    splits = {
        "train": {"examples": 1_300, "per_class": [0, 1_300]},
        "test": {"examples": 2, "per_class": [2, 0]},
    }
    for split in splits.values():
        split.update(pixels=[], per_value={}, heights=[], widths=[])
    kinds = ("unreadable", "in_several_splits", "twice_in_a_split", "same_image_other_label")
    results = {"source": "folder:a", "class_names": ["cat", "dog"], "value_names": [], "notes": [], "splits": splits}
    lines = load("train.check_data").as_text({**results, **dict.fromkeys(kinds, {})}).splitlines()
    found = {line.split()[0]: line.split()[1:] for line in lines[1:5]}
    assert found == {
        "class": ["train", "test"],
        "cat": ["0", "2", "no", "examples"],
        "dog": ["1,300", "0"],
        "all": ["1,300", "2"],
    }
    assert not [line for line in lines if "share of the pixels" in line or "median" in line]
    splits["train"]["pixels"] = [0.12345, 0.87155, 0.005]
    lines = load("train.check_data").as_text({**results, **dict.fromkeys(kinds, {})}).splitlines()
    first = lines.index("share of the pixels:") + 1
    shares = [["cat", "12.35%", "0.00%"], ["dog", "87.16%", "0.00%"], ["(ignored)", "0.50%", "0.00%"]]
    assert [line.split() for line in lines[first : first + 3]] == shares


def test_findings_are_listed_in_order():
    values = {"age": {"count": 1_200, "mean": 40.123456, "deviation": 8.0, "min": 1.0, "max": 99.0}}
    split = {
        "examples": 3,
        "per_class": [],
        "pixels": [],
        "per_value": values,
        "heights": [4, 5, 9],
        "widths": [1, 2, 3],
    }
    results = {
        **{"source": "folder:a", "class_names": [], "value_names": ["age"], "notes": ["b/ is empty.", "c"]},
        **{"splits": {"train": split}, "unreadable": {"d.png": "cut off"}},
        **{"in_several_splits": [["train: e", "test: e"]], "twice_in_a_split": [["train: f", "train: g"]]},
        **{"same_image_other_label": [["train: h", "test: i"]], "sheet": [["1", "2"], ["3"]]},
    }
    assert load("train.check_data").as_text(results).splitlines()[3:] == [
        "train: age of 1,200 images, mean 40.1235, standard deviation 8, minimum 1, maximum 99",
        "train: minimum 1 x 4, median 2 x 5, maximum 3 x 9 pixels, each side on its own",
        *("about the folder: 2", "  b/ is empty.", "  c"),
        *("unreadable: 1", "  d.png: cut off"),
        *("in several splits: 1", "  train: e, test: e"),
        *("twice in a split: 1", "  train: f, train: g"),
        *("same image, another label: 1", "  train: h, test: i"),
        *("labels on the sheet, row by row:", "  1, 2", "  3"),
    ]


def test_check_data_reports_no_problems(capsys):
    assert call("train.check_data", data="digits", splits=["test"], json=False, sheet=None) == 0
    assert "unreadable: 0" in capsys.readouterr().out


@pytest.mark.parametrize("program", ["train.check_data", "train.make_tfrecords"])
def test_missing_source_is_reported(program):
    with pytest.raises(ValueError, match="data set"):
        call(program, data=None)


@pytest.mark.slow
def test_duplicates_and_contact_sheets_are_written():
    source = data.open_source("digits", "test[:9]")
    found = audit.audit(source)
    assert [picture.label for picture in found] == [(int(label),) for label in source.labels()]
    groups = audit.duplicates({"a": found, "b": found[:2]})
    assert len(groups) == 2 and {split for split, _ in groups[0]} == {"a", "b"}
    png, rows = audit.contact_sheet(source, "resize(8)|value_range(0, 1)|random_crop(8)", count=4)
    batch = next(iter(data.train_batches(source, "resize(8)", 4)))
    assert sum(rows, []) == [source.class_names[label] for label in batch["label"].numpy()]
    sheet = tf.io.decode_png(png)
    assert sheet.shape == (20, 20, 1)  # floats are stretched to bytes, gray stays gray


@pytest.mark.slow
def test_images_of_one_color_and_other_shapes_are_not_duplicates(tmp_path):
    for class_name, shape in (("a", (2, 8)), ("b", (4, 4)), ("c", (8, 2))):
        (tmp_path / class_name).mkdir()
        for name in "01":
            (tmp_path / class_name / f"{name}.png").write_bytes(
                example_images.encode(np.full((*shape, 3), 7, np.uint8))
            )
    found = audit.audit(data.open_source(f"folder:{tmp_path}", "all"))
    assert sorted(report.size for report in found) == [(2, 8)] * 2 + [(4, 4)] * 2 + [(8, 2)] * 2
    groups = audit.duplicates({"all": found})
    sizes = sorted(sorted({report.size for _, report in group}) for group in groups)
    assert sizes == [[(2, 8)], [(4, 4)], [(8, 2)]]


def test_a_sheet_shows_images_that_are_not_square(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (6, 5, 9, 3), np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(6))
    source = data.open_source(f"npz:{tmp_path}/a.npz", "all")
    png, rows = audit.contact_sheet(source, "value_range(-1, 1)", count=7)  # of six images
    sheet = tf.io.decode_png(png).numpy()
    assert sheet.shape == (2 * 7, 3 * 11, 3)
    for place, name in enumerate(sum(rows, [])):
        top, left = place // 3 * 7 + 1, place % 3 * 11 + 1
        np.testing.assert_array_equal(sheet[top : top + 5, left : left + 9], images[int(name)])
