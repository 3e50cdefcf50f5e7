"""The programs on a finished run, from its directory to the artifacts and back through evaluation and prediction."""

import csv
import json
import os
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver

from keras_vit import inference
from tests import golden_data, tiny
from tests.programs import call, load

ROOT = pathlib.Path(__file__).parents[2]
PREDICT = """
import sys
sys.argv[0:1] = ["keras-vit", "predict"]
sys.modules["__main__"].__file__ = "keras-vit"
from keras_vit.cli import commands
try:
    commands.main()
finally:
    print(*sys.modules)
"""


@pytest.mark.slow
def test_predict_prints_the_probabilities_of_the_model(run, digits, tmp_path, capsys):
    logits, source = digits.logits, digits.source
    tiny.digit_files(tmp_path, source)
    bad, missing = tmp_path / "bad.jpg", tmp_path / "missing.jpg"
    bad.write_bytes(b"not an image")
    assert call("train.predict", f"--model={run}", "--json", tmp_path / "digit_*.png", bad, missing) == 1
    *answers, first, second = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (first["path"], second["path"]) == (str(bad), str(missing))
    assert "not a readable image" in first["error"] and "No such file" in second["error"]
    assert [os.path.basename(answer["path"]) for answer in answers] == [f"digit_{i}.png" for i in range(3)]
    for answer, row in zip(answers, logits, strict=False):
        expected = tf.nn.softmax(row).numpy()
        order = np.argsort(-expected)[:5]
        assert [p["label"] for p in answer["predictions"]] == [str(i) for i in order]
        np.testing.assert_allclose([p["probability"] for p in answer["predictions"]], expected[order], atol=1e-5)


@pytest.mark.slow
def test_predict_with_a_tflite_file_runs_without_tensorflow(tflite_file, digits, tmp_path, capsys):
    images = tiny.digit_files(tmp_path, digits.source, 2)
    command = [sys.executable, "-c", PREDICT, f"--model={tflite_file}", "--json", *images]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    *answers, imported = done.stdout.splitlines()
    assert {"numpy", "ai_edge_litert"} <= set(imported.split())
    assert set(imported.split()).isdisjoint({"tensorflow", "keras", "jax", "torch"})
    assert call("train.predict", f"--model={tflite_file}", "--json", *images) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in answers] == [json.loads(line) for line in lines[-2:]]


def test_predict_requires_classes(run, monkeypatch):
    opened = types.SimpleNamespace(card=types.SimpleNamespace(names=()))
    monkeypatch.setattr(inference, "open_predictor", lambda *_, **__: opened)
    with pytest.raises(ValueError, match="must have classes"):
        call("train.predict", f"--model={run}", golden_data.path("images/gray.png"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.jpg"], r"missing\.jpg"),
        (["empty"], "empty"),
        ([], "Name at least one image"),
        ([".", "--output=a.csv", "--json"], "--json"),
        ([".", "--output=folder.csv"], "--output.*a folder"),
        ([".", "--output=prices.csv"], r"prices\.csv.*table of predictions"),
        ([".", "--output=digit_0.png"], "--output.*a file"),
        ([".", "--sort=digit_0.png"], "--sort"),
        ([".", "--output=masks"], "only a model that predicts masks"),
        ([".", "--sort=gs://bucket"], "gs://bucket"),
    ],
)
def test_wrong_paths_and_flags_are_refused_before_the_model_is_opened(
    arguments, message, run, digits, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    tiny.digit_files(tmp_path, digits.source, 1)
    for folder in ("empty", "folder.csv"):
        (tmp_path / folder).mkdir()
    (tmp_path / "prices.csv").write_text("name,price\nscrew,1\n")
    monkeypatch.setattr(inference, "open_predictor", lambda *_, **__: pytest.fail("the model was opened"))
    before = sorted(tmp_path.iterdir())
    with pytest.raises((ValueError, OSError, flags.Error), match=message):
        call("train.predict", f"--model={run}", *arguments)
    assert sorted(tmp_path.iterdir()) == before


@pytest.fixture
def photos(digits, tmp_path):
    """A folder with folders, in which images have the same names, and one cannot be read."""
    for number, folder in enumerate(("a", "a/b", "c")):
        (tmp_path / "photos" / folder).mkdir(parents=True)
        image = tf.io.encode_png(digits.source.images[number]).numpy()
        (tmp_path / "photos" / folder / "1.png").write_bytes(image)
    (tmp_path / "photos" / "c" / "bad.jpg").write_bytes(b"no image")
    return tmp_path / "photos"


@pytest.mark.slow
def test_a_folder_becomes_a_table_that_a_second_call_continues(run, digits, photos, tmp_path, monkeypatch, capsys):
    logits = digits.logits[:3]
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    output, seen = tmp_path / "predictions.csv", []
    predict = inference.KerasPredictor.predict
    monkeypatch.setattr(
        inference.KerasPredictor, "predict", lambda self, images: seen.append(len(images)) or predict(self, images)
    )
    arguments = (f"--model={run}", f"--output={output}", "--order=uncertain", "--top_k=2")
    listed = tmp_path / "first.txt"
    listed.write_text(f"{photos}/c/1.png\n")
    assert call("train.predict", *arguments, listed) == 0
    assert call("train.predict", *arguments, photos) == 1
    assert call("train.predict", *arguments, "--on_bad_image=skip", photos) == 0
    assert seen == [1, 2]
    assert capsys.readouterr().out.split() == [str(output)] * 3
    with open(output, encoding="utf-8", newline="") as file:
        *rows, bad = csv.DictReader(file)
    assert bad["path"].endswith("bad.jpg") and "not a readable image" in bad["error"]
    doubts = [float(row["uncertainty"]) for row in rows]
    assert doubts == sorted(doubts, reverse=True)
    by_path = {row["path"]: row for row in rows}
    for path, row in zip(("a/1.png", "a/b/1.png", "c/1.png"), probabilities, strict=True):
        entry, (second, first) = by_path[f"{photos}/{path}"], np.argsort(row)[-2:]
        assert [entry["label"], entry["label_2"]] == [str(first), str(second)]
        numbers = [float(entry[name]) for name in ("probability", "probability_2", "uncertainty")]
        np.testing.assert_allclose(numbers, [row[first], row[second], 1 - row[first] + row[second]], atol=1e-5)


@pytest.mark.slow
def test_images_are_sorted_by_class(run, digits, photos, tmp_path, capsys):
    """Also those that a table has already, and not the copies themselves."""
    target, output = photos / "sorted", tmp_path / "table.jsonl"
    assert call("train.predict", f"--model={run}", f"--output={output}", photos / "a") == 0
    for _ in range(2):
        assert call("train.predict", f"--model={run}", f"--output={output}", f"--sort={target}", photos) == 1
    contents = {path.relative_to(photos): path.read_bytes() for path in photos.rglob("1*.png")}
    copies = sorted((str(path.parent.name), data) for path, data in contents.items() if path.parts[0] == "sorted")
    labels = digits.logits[:3].argmax(-1)
    originals = [contents[pathlib.Path(name)] for name in ("a/1.png", "a/b/1.png", "c/1.png")]
    assert copies == sorted((str(label), data) for label, data in zip(labels, originals, strict=True))


@pytest.mark.parametrize(
    ("kind", "probability", "folder"),
    [("classes", 0.5, "bee"), ("classes", 0.499, "none"), ("class", 0.2, "bee")],
)
def test_an_image_may_have_no_class_where_it_may_have_several(kind, probability, folder, tmp_path):
    (tmp_path / "a.png").write_bytes(b"a")
    program = load("train.predict")
    with flagsaver.flagsaver(sort=str(tmp_path / "sorted")):
        program.copier(tiny.card(data={"label_kind": kind}))(str(tmp_path / "a.png"), "bee", probability)
    assert (tmp_path / "sorted" / folder / "a.png").read_bytes() == b"a"


def test_the_first_twenty_images_that_cannot_be_read_are_listed(caplog):
    program, written = load("train.predict"), []

    def predict_each(images, batch_size, top_k):
        for image in images:
            yield inference.Prediction(image.name, None, error="cut off" if "bad" in image.name else "")

    predictor = types.SimpleNamespace(predict_each=predict_each)
    for count, more in ((20, ""), (1_021, ", 1001 more than are listed")):
        names = [*(f"bad{number}.png" for number in range(count)), *(f"{number}.png" for number in range(count, 2_000))]
        found = program.predict_images(predictor, iter(names), 2_000, [written.append])
        assert [prediction.name for prediction in written[-2_000:]] == names
        assert program.report(*found) == 1
        lines = [f"{name}: cut off" for name in names[:20]]
        assert caplog.messages == [*lines, f"{count} of 2000 images could not be read{more}"]
        with flagsaver.flagsaver(on_bad_image="skip"):
            assert program.report(*found) == 0
        caplog.clear()
    assert program.report([], 0, 2_000) == 0 and not caplog.messages


@pytest.mark.slow
def test_predict_writes_a_table_for_photographs_of_any_size(run, capsys):
    paths = [golden_data.path(f"images/{name}") for name in ("tall.jpg", "gray.png")]
    assert call("train.predict", f"--model={run}", "--top_k=3", "--order=uncertain", *paths) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {lines[0], lines[4]} == set(map(str, paths)) and all(line.endswith("%") for line in lines[1:4])
    first, second = ([float(line.split()[-1][:-1]) for line in lines[start : start + 2]] for start in (1, 5))
    assert first[0] - first[1] <= second[0] - second[1]
