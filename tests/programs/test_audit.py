"""Looking at a data set: duplicates and a sheet of its images."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from tests.data import pictures
from train.datasets import audit


@pytest.mark.slow
def test_duplicates_and_sheets():
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
            (tmp_path / class_name / f"{name}.png").write_bytes(pictures.encode(np.full((*shape, 3), 7, np.uint8)))
    found = audit.audit(data.open_source(f"folder:{tmp_path}", "all"))
    assert sorted(report.size for report in found) == [(2, 8)] * 2 + [(4, 4)] * 2 + [(8, 2)] * 2
    groups = audit.duplicates({"all": found})
    sizes = sorted(sorted({report.size for _, report in group}) for group in groups)
    assert sizes == [[(2, 8)], [(4, 4)], [(8, 2)]]


def test_a_sheet_of_images_that_are_not_square(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (6, 5, 9, 3), np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(6))
    source = data.open_source(f"npz:{tmp_path}/a.npz", "all")
    png, rows = audit.contact_sheet(source, "value_range(-1, 1)", count=7)  # of six images
    sheet = tf.io.decode_png(png).numpy()
    assert sheet.shape == (2 * 7, 3 * 11, 3)
    for place, name in enumerate(sum(rows, [])):
        top, left = place // 3 * 7 + 1, place % 3 * 11 + 1
        np.testing.assert_array_equal(sheet[top : top + 5, left : left + 9], images[int(name)])
