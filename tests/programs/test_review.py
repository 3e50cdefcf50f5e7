"""`check-data --model`: labels that may be wrong, near duplicates and outliers, as rows, a page and a list."""

import csv
import io
import json
import shlex
import shutil
import subprocess
import tarfile

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data, inference
from tests import tiny
from tests.data import example_images
from tests.programs import call, load
from train.datasets import labels, review, review_files
from train.datasets.audit import ImageReport


def blobs(counts, seed=0):
    """Features `[N, 4]` around one corner per class, and their labels."""
    numbers = np.repeat(np.arange(len(counts)), counts)
    noise = np.random.default_rng(seed).normal(0, 0.1, (len(numbers), 4))
    return (np.eye(4)[numbers] + noise).astype(np.float32), numbers


def found(features, numbers, names, splits=None, pixels=None):
    reports = [ImageReport(f"{index}.png", (int(number),)) for index, number in enumerate(numbers)]
    splits = splits or ["train"] * len(numbers)
    pixels = np.random.default_rng(1).normal(size=(len(numbers), 12)) if pixels is None else pixels
    return review.of_features(list(zip(splits, reports, strict=True)), features, pixels, names)


def test_wrong_labels_are_counted_by_the_confident_joint():
    """Thresholds 0.6 for the first class, 0.7 for the second class. The third class has no images."""
    probabilities = np.array(
        [
            [0.9, 0.1, 0.0],
            [0.6, 0.4, 0.0],
            [0.3, 0.7, 0.0],  # reaches the threshold of the other class: wrong
            [0.1, 0.9, 0.0],
            [0.5, 0.5, 0.0],  # reaches no threshold
            [0.0, 0.7, 0.3],
        ]
    )
    given = np.array([0, 0, 0, 1, 1, 1])
    assert labels.count_wrong(probabilities, given) == 1
    given[3] = 0  # thresholds 0.475 and 0.6: the third to the fifth image are counted
    assert labels.count_wrong(probabilities, given) == 3
    # Both thresholds (0.5 and 0.35) are reached: the larger probability decides.
    assert labels.count_wrong(np.array([[0.55, 0.45], [0.45, 0.55], [0.65, 0.35]]), np.array([0, 0, 1])) == 2


def test_swapped_labels_are_ranked_first_and_the_rest_is_not_suspicious():
    features, numbers = blobs([20, 20, 20])
    exchanged = {3, 25, 47}
    given = [(number + 1) % 3 if index in exchanged else number for index, number in enumerate(numbers)]
    result = found(features, given, ("a", "b", "c"))
    assert {row["path"] for row in result.rows[:3]} == {f"{index}.png" for index in exchanged}
    assert [row["suspicious"] for row in result.rows] == ["yes"] * 3 + [None] * 57
    qualities = [row["label_quality"] for row in result.rows]
    assert qualities == sorted(qualities) and 0 <= qualities[0] < 0.1
    (row,) = [row for row in result.rows if row["path"] == "3.png"]
    assert (row["label"], row["predicted"]) == ("b", "a") and row["probability"] > 0.9
    np.testing.assert_array_equal(result.confusion, [[19, 0, 1], [1, 19, 0], [0, 1, 19]])
    assert result.rows == found(features, given, ("a", "b", "c")).rows  # deterministic


def test_the_probability_of_an_image_does_not_depend_on_its_label():
    features, numbers = blobs([20, 20])
    before = labels.out_of_fold(features, numbers, 2)
    changed = numbers.copy()
    changed[7] = 1
    after = labels.out_of_fold(features, changed, 2)
    # The folds follow the classes, so the other labels of a fold may differ.
    assert before[7].argmax() == after[7].argmax() == 0
    np.testing.assert_allclose(before.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(("counts", "rated"), [([20, 20, 1], 40), ([4, 1], 0), ([2, 2], 0), ([9], 0)])
def test_a_class_of_one_image_and_a_few_images_are_not_reviewed(counts, rated):
    features, numbers = blobs(counts)
    result = found(features, numbers, ("a", "b", "c")[: len(counts)])
    assert [row["label_quality"] is None for row in result.rows] == [False] * rated + [True] * (sum(counts) - rated)
    assert len(result.findings["suspicious_labels"]) <= rated and result.confusion.sum() == rated


def test_labels_that_are_not_classes_are_not_reviewed():
    features, _ = blobs([9, 9])
    result = found(features, np.zeros(18), ())
    assert {row["label"] for row in result.rows} == {None} and not result.confusion.size


def test_near_duplicates_and_outliers_are_found():
    rng = np.random.default_rng(0)
    features, pixels = rng.normal(size=(60, 16)).astype(np.float32), rng.normal(size=(60, 12))
    features += 3  # all images look alike, except for the outlier
    features[20], pixels[20] = features[10] + 0.03 * features[0], 0.5 * pixels[10] + 7  # darker
    features[30], pixels[30] = features[10], pixels[10]
    features[40] = features[11] + 0.3 * features[0]  # with other pixels
    features[50] = -features[50]
    splits = ["test" if index == 30 else "train" for index in range(60)]
    numbers = [int(index == 20) for index in range(60)]
    result = found(features, numbers, ("a", "b"), splits, pixels)
    rows = {row["path"]: row for row in result.rows}
    near = {path: row["near_duplicate"] for path, row in rows.items() if row["near_duplicate"]}
    assert near == {"10.png": "30.png", "20.png": "30.png", "30.png": "10.png"}  # in another split if possible
    pairs = [{row["path"], row["near_duplicate"]} for row in result.findings["near_duplicates"]]
    assert pairs == [{"10.png", "30.png"}, {"20.png", "30.png"}]
    assert (rows["20.png"]["label"], rows["20.png"]["near_label"], rows["20.png"]["near_split"]) == ("b", "a", "test")
    assert [row["path"] for row in result.findings["outliers"]] == ["50.png"]


def test_many_copies_of_an_image_are_near_duplicates():
    features, pixels = np.ones((30, 4), np.float32), np.tile(np.arange(12.0), (30, 1))
    result = found(features, np.zeros(30), ("a",), pixels=pixels)
    assert all(row["near_duplicate"] not in (None, row["path"]) for row in result.rows)
    assert not result.findings["outliers"]


def test_features_that_are_not_finite_are_refused():
    features, numbers = blobs([3, 3])
    features[1, 0] = np.nan
    with pytest.raises(ValueError, match="5 of 6"):
        found(features, numbers, ("a", "b"))
    with pytest.raises(ValueError, match="1 of 1"):
        found(features[:1], numbers[:1], ("a", "b"))


def check_data(source, model, *arguments):
    return call("train.check_data", source, f"--model={model}", "--preprocess=decode(1)|value_range(-1, 1)", *arguments)


@pytest.fixture(scope="module")
def noisy(digits, tmp_path_factory):
    """A folder of 400 digits, 20 of them in the folder of another class, and the names of these files."""
    root, source = tmp_path_factory.mktemp("noisy"), data.open_source("digits", "train[:400]")
    wrong = np.random.default_rng(0).choice(400, 20, replace=False).tolist()
    for index, label in enumerate(source.labels().tolist()):
        folder = root / "photos" / str((label + 1 + index % 9) % 10 if index in wrong else label)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index}.png").write_bytes(tf.io.encode_png(source.images[index]).numpy())
    return root, {f"{index}.png" for index in wrong}


@pytest.mark.slow
def test_seventy_percent_of_the_wrong_labels_are_among_the_first_tenth(noisy, run, capsys, monkeypatch):
    """5 % of the labels are exchanged; the features are those of a tiny model with random weights."""
    root, wrong = noisy
    code = check_data(f"folder:{root}/photos", run, f"--output={root}/review")
    text = capsys.readouterr().out
    with open(root / "review" / review_files.LIST, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 400
    first = {row["path"].rpartition("/")[2] for row in rows[:40]}
    assert len(first & wrong) >= 14
    count = sum(row["suspicious"] == "yes" for row in rows)
    assert f"suspicious labels: {count}" in text and f"sed '2,{count + 1}{{/,train,/d;}}'" in text
    assert code == any(row["near_split"] not in ("", row["split"]) for row in rows)
    page = (root / "review" / review_files.PAGE).read_text(encoding="utf-8")
    assert "Suspicious labels" in page and "Confusion matrix" in page
    assert page.count("data:image/png") >= min(count, review_files.SHOWN)
    # The printed command leaves out the suspicious labels of the training split. The test split stays as it is.
    lines = (root / "review" / review_files.LIST).read_text(encoding="utf-8").splitlines(keepends=True)
    (command,) = [line for line in text.splitlines() if line.startswith("  sed ")]
    subprocess.run(command, shell=True, check=True)
    sizes = data.split_sizes(f"manifest:{root}/review/kept.csv")
    test = sum(row["split"] == "test" for row in rows)
    left = sum(row["split"] == "train" and row["suspicious"] != "yes" for row in rows)
    assert sizes == {"train": left, "test": test}
    assert data.open_source(f"manifest:{root}/review/kept.csv").class_names == tuple("0123456789")
    # A second call does not compute the features again.
    monkeypatch.setattr(inference.KerasPredictor, "features", lambda *_: pytest.fail("features were computed"))
    assert check_data(f"folder:{root}/photos", run, f"--output={root}/review") == code
    assert (root / "review" / review_files.LIST).read_text(encoding="utf-8") == "".join(lines)
    with pytest.raises(pytest.fail.Exception, match="features were computed"):
        check_data(f"folder:{root}/photos", run, f"--output={root}/review", "--splits=test")


@pytest.mark.parametrize(
    ("names", "options"), [(["0", "1"], ""), (["cat", "7"], ""), (["3", "7"], "#class_names=['3', '7']")]
)
def test_the_printed_data_set_has_the_same_classes(names, options, tmp_path):
    path = tmp_path / "a b.png"
    path.write_bytes(b"")
    wrong = [{"split": "train", "path": str(path), "label": names[0], "predicted": names[1]}]
    results = {
        "suspicious_labels": wrong,
        "near_duplicates": [],
        "outliers": [],
        "class_names": names,
        "splits": {"train": {}},
    }
    command = load("train.check_data").about_features(results, "review")[-1]
    assert shlex.split(command)[-1] == f"manifest:review/kept.csv{options}"


@pytest.mark.slow
def test_reencoded_copy_in_another_split_is_found(run, tmp_path, capsys):
    for index, image in enumerate(tiny.arrays(24, 64, 64)):
        folder = tmp_path / "photos" / ("test" if index > 18 else "train") / ("<b>" if index % 2 else "=1+1")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index}.png").write_bytes(example_images.encode(image))
    copy = tmp_path / "photos" / "test" / "<b>" / "copy.jpg"
    copy.write_bytes(example_images.encode(tiny.arrays(24, 64, 64)[0], "JPEG", quality=80))
    arguments = ("--preprocess=decode(1)|resize(8)|value_range(-1, 1)", "--json", f"--output={tmp_path}/review")
    assert call("train.check_data", f"folder:{tmp_path}/photos", f"--model={run}", *arguments) == 1
    results = json.loads(capsys.readouterr().out)
    assert not results["in_several_splits"]
    pairs = [{row["path"], row["near_duplicate"]} for row in results["near_duplicates"]]
    assert pairs[0] == {str(copy), str(tmp_path / "photos" / "train" / "=1+1" / "0.png")}
    page = (tmp_path / "review" / review_files.PAGE).read_text(encoding="utf-8")
    assert "&lt;b&gt;" in page and "<b>" not in page.replace("<b>cosine", "").partition("=1+1")[0]
    with open(tmp_path / "review" / review_files.LIST, newline="", encoding="utf-8") as file:
        assert {row["label"] for row in csv.DictReader(file)} == {"<b>", "'=1+1"}  # not a formula of a spreadsheet
    shutil.rmtree(tmp_path / "photos" / "test" / "<b>")


@pytest.mark.slow
@pytest.mark.parametrize("source", ["digits", "npz:{}/values.npz#values=size", "webdataset:{}/a.tar"])
def test_review_covers_sources_without_files_and_labels_without_classes(source, run, tmp_path, capsys):
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 1), np.uint8)
    np.savez(tmp_path / "values.npz", images=images, labels=np.arange(12.0))
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for index, image in enumerate(images):
            for name, content in (("png", example_images.encode(image[..., 0])), ("cls", b"01"[index % 2 :][:1])):
                member = tarfile.TarInfo(f"{index}.{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    split = "test[:60]" if source == "digits" else "all"
    code = check_data(source.format(tmp_path), run, f"--splits={split}", f"--output={tmp_path}/review")
    text = capsys.readouterr().out
    assert code == 0 and "outliers: " in text and "sed" not in text
    with open(tmp_path / "review" / review_files.LIST, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert all(row["path"].startswith(("image ", f"{tmp_path}/a.tar/")) for row in rows)
    assert [row["label_quality"] != "" for row in rows] == ["values" not in source] * len(rows)


def test_a_folder_for_the_review_needs_a_model(tmp_path):
    with pytest.raises(ValueError, match="--output needs --model"):
        call("train.check_data", "digits", f"--output={tmp_path}")
    with pytest.raises(ValueError, match="--output must be a folder"):
        call("train.check_data", "digits", "--model=a.keras", f"--output={__file__}")
