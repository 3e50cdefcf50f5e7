"""`train.sample_data` writes sets that the other programs read."""

import csv
import json
import pathlib

import numpy as np
import pytest
from PIL import Image

from keras_vit import data
from tests.programs import call


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sample") / "shapes"
    assert call("train.sample_data", output=str(folder), set="shapes", count=12) == 0
    return folder


@pytest.mark.slow
def test_shapes_have_masks_of_all_classes(shapes):
    """Both spellings open the same set, and a digit of the test part is not among those of the training part."""
    spec = f"folder:{shapes}/images#masks={shapes}/masks"
    assert data.split_sizes(spec) == data.split_sizes(f"manifest:{shapes}/list.csv") == {"train": 12, "test": 12}
    source = data.open_source(spec)
    assert source.class_names == ("ground", "disk", "square", "triangle", "cross", "digit")
    masks = np.stack([example["mask"] for example in source.examples()])
    assert set(np.unique(masks)) == {*range(6), data.IGNORED} and masks.shape == (12, 96, 96)
    listed = data.open_source(f"manifest:{shapes}/list.csv")
    assert sorted(mask.tobytes() for mask in masks) == sorted(e["mask"].numpy().tobytes() for e in listed.examples())


@pytest.mark.slow
def test_shapes_differ_from_the_ground_in_texture_only(shapes):
    """No class has a color of its own: means over a class are spread like those of any other."""
    source = data.open_source(f"folder:{shapes}/images#masks={shapes}/masks")
    examples = list(data.eval_batches(source, "decode|resize(96)", 12))[0]
    image, mask = examples["image"].numpy(), examples["mask"].numpy()
    means = np.stack([[i[m == 0].mean(0), i[(m > 0) & (m < 6)].mean(0)] for i, m in zip(image, mask, strict=True)])
    assert (means.std(axis=0) > 25).all()


def test_the_set_is_the_same_at_each_call(shapes, tmp_path):
    assert call("train.sample_data", output=str(tmp_path / "again"), set="shapes", count=2) == 0
    for path in (tmp_path / "again").rglob("*.png"):
        assert path.read_bytes() == (shapes / path.relative_to(tmp_path / "again")).read_bytes()


@pytest.mark.slow
def test_check_data_describes_masks(shapes, tmp_path, capsys):
    spec = f"folder:{shapes}/images#masks={shapes}/masks"
    sheet = tmp_path / "sheet.png"
    assert call("train.check_data", data=spec, splits=[], json=True, sheet=str(sheet), sheet_count=4) == 0
    results = json.loads(capsys.readouterr().out)["splits"]["train"]
    assert sum(results["pixels"]) == pytest.approx(1) and results["pixels"][0] > 0.5 and len(results["pixels"]) == 7
    assert results["per_class"][0] == 12 and sheet.exists()
    path = pathlib.Path(data.open_source(spec).mask_paths[0])
    content = path.read_bytes()
    path.write_bytes(b"")
    try:
        assert call("train.check_data", data=spec, splits=["train"], json=False, sheet=None) == 1
    finally:
        path.write_bytes(content)
    text = capsys.readouterr().out
    assert "unreadable: 1" in text and f"the mask {path} must be a PNG file" in text and "(ignored)" in text


def test_digits_are_written_as_folders(tmp_path):
    assert call("train.sample_data", output=str(tmp_path / "digits"), count=40) == 0
    assert data.split_sizes(f"folder:{tmp_path}/digits") == {"train": 40, "test": 40}
    with open(tmp_path / "digits" / "list.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows[::20]:
        brightness = np.mean(Image.open(tmp_path / "digits" / row["path"])) / 255
        assert float(row["ink"]) == pytest.approx(100 * brightness, abs=0.0051)  # in percent, two digits
        assert row["path"].split("/")[:2] == [row["split"], row["label"]]
