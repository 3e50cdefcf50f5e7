"""`train.visualize` on everything that it opens."""

import base64
import json
import re
import types
from xml.etree import ElementTree

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import flagsaver

from keras_vit import data, inference
from keras_vit.inference import sample_images
from keras_vit.inspection import examples
from keras_vit.util.values import Values
from tests import golden_data, programs, tiny

pytest.importorskip("matplotlib", reason="the report needs matplotlib")


def visualize(output, *arguments):
    assert programs.call("train.visualize", f"--output={output}", "--title=", *arguments) == 0
    html = (output / "report.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="viewer-data">(.*?)</script>', html, re.DOTALL)[1])
    return html, data


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A run on the digits and its report."""
    directory = tmp_path_factory.mktemp("digits")
    tiny.write_digits_run(directory / "run", pooling="gap", num_layers=2)
    arguments = [f"--model={directory / 'run'}", "--num_images=3", "--distance_images=5", "--evaluated_images=40"]
    return directory, *visualize(directory / "report", *arguments)


@pytest.mark.slow
def test_report_of_a_run_is_written(digits):
    directory, html, data = digits
    names = [image["name"] for image in data["images"]]
    assert len(names) == 3 and all(re.fullmatch(r"digits #\d+", name) for name in names)
    assert [view["title"] for view in data["views"]] == [
        "Attention rollout",
        "Relevance for the prediction",
        "Attention by layer",
    ]
    layers = data["images"][0]["maps"]["layers"]
    assert len(base64.b64decode(layers["values"])) == 2 * (1 + 2) * 2 * 2  # layers, heads and their mean, grid
    titles = re.findall("<h2>(.*?)</h2>", html)
    for title in (
        "Where the model looks",
        "Accuracy per class",
        "Confusion matrix",
        "Training",
        "Filters of the first layer",
        "Similarity of positions",
        "Attention distance",
        "Model card",
    ):
        assert title in titles
    for text in ("value_range(-1, 1)", "eval_accuracy", "accuracy, test split, 40 of 360 images"):
        assert text in html
    for name in ("attention_distance", "embedding_filters", "position_similarity", "training_loss"):
        drawing = ElementTree.parse(directory / "report" / "figures" / f"{name}.svg").getroot()
        assert drawing.tag.endswith("}svg")
    assert re.search(r">[✓✗] \d</span>", html)  # the true labels of the data set are known


@pytest.mark.slow
def test_the_values_of_an_image_are_under_it(tmp_path):
    """Of a file that is not part of a run, and an image with a comma in its path."""
    values = Values(("age", "height"), mean=(40.0, 1.7), deviation=(10.0, 0.1))
    tiny.regression(values).save(tmp_path / "model.keras")
    model, pp, image = tmp_path / "model.keras", "value_range(-1, 1)", tmp_path / "Blüte, pink" / "a, b.png"
    image.parent.mkdir()
    image.write_bytes(tiny.images(1).contents[0])
    (expected,) = inference.open_predictor(model, preprocess=pp).predict(image).tolist()
    html, data = visualize(tmp_path, f"--model={model}", f"--preprocess={pp}", f"--images={image.parent}/*.png")
    assert [image["name"] for image in data["images"]] == ["a, b.png"]
    assert "<h1>model.keras</h1>" in html and "<h2>Training</h2>" not in html
    assert re.findall(r'<span title="[^"]*">(age|height)</span><b>([^<]*)</b>', html) == [
        (name, f"{value:.5g}") for name, value in zip(values.names, expected, strict=True)
    ]
    assert "has no head" not in html
    card = inference.ModelCard((), "", "values", (8, 8, 3), values=values.to_dict())
    shown = programs.load("train.visualize").values_of(card, [1.5, 2], [3, 4])
    assert shown == [("age", "1.5, true 3"), ("height", "2, true 4")]


@pytest.mark.slow
def test_report_of_an_exported_model_is_written(digits, tmp_path):
    directory, _, _ = digits
    programs.call(
        "export.main", f"--model={directory / 'run'}", f"--output={tmp_path / 'saved'}", "--signature=attention"
    )
    html, data = visualize(tmp_path / "report", f"--model={tmp_path / 'saved'}", "--num_images=2")
    assert [(view["key"], view["frames"]) for view in data["views"]] == [
        ("occlusion", ["whole model"]),
        ("layers", ["block 1", "block 2"]),
    ]
    assert "This is an exported model" in html
    assert len(data["images"]) == 2


def test_the_page_of_a_checkpoint_names_its_step(tmp_path):
    note_of = programs.load("train.visualize").note_of
    card = types.SimpleNamespace(recipe={"total_steps": 30}, metrics={"step": 20})
    shown = "step 20 of 30"
    for checkpoint, words in (("best", shown), ("22", "step 22 of 30"), ("last", shown), (None, shown)):
        with flagsaver.flagsaver(checkpoint=checkpoint):
            note = note_of(str(tmp_path), card)
        assert words in note and "not finished" in note
    (tmp_path / "model.keras").touch()
    with flagsaver.flagsaver(checkpoint="best"):
        assert "not finished" not in note_of(str(tmp_path), card)
    assert note_of(str(tmp_path), types.SimpleNamespace(recipe={"total_steps": 20}, metrics={"step": 20})) == ""


def test_wrong_flags_are_refused(tmp_path, monkeypatch):
    picture = golden_data.path("images/small.png")
    for arguments, message in [
        ([f"--model={tmp_path}"], "--output is missing"),
        (["--model=x", f"--output={tmp_path}"], "at 'x'"),
    ]:
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            programs.call("train.visualize", *arguments)
    monkeypatch.setattr(inference, "open_predictor", lambda *_, **__: types.SimpleNamespace(card=tiny.card()))
    with pytest.raises(ValueError, match="--images is missing: the data set"):
        programs.call("train.visualize", f"--model={tmp_path}", f"--output={tmp_path}")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        programs.call("train.visualize", f"--model={tmp_path}", f"--output={tmp_path}", "--images=nowhere.jpg", picture)


@pytest.mark.parametrize(("count", "origin"), [(1_200, "test split"), (1_201, "test split, 1,200 of 1,201 images")])
def test_the_page_names_the_part_of_the_split_that_it_measures(count, origin, monkeypatch):
    program = programs.load("train.visualize")
    source = types.SimpleNamespace(num_examples=count)
    monkeypatch.setattr(program.sample_images, "open_data", lambda card: source)
    monkeypatch.setattr(program.sample_images, "from_source", lambda *given: given)
    monkeypatch.setattr(program.sample_images, "keep_readable", lambda *given: given)
    card = tiny.card(recipe={"data": {"source": "x", "eval_split": "test", "on_bad_image": "skip"}})
    with flagsaver.flagsaver(num_images=12, distance_images=64, evaluated_images=1_200):
        found = program.find_images([], card, len)
    assert found == (((source, 1_200, "skip", card), len, "skip"), origin)
    monkeypatch.setattr(program.sample_images, "from_files", lambda *given: given)
    with flagsaver.flagsaver(num_images=12, distance_images=64, evaluated_images=0, on_bad_image="error"):
        found = program.find_images(["a.png"], card, len)
    assert found == (((["a.png"], 64, "error"), len, "error"), "")


def test_the_card_of_the_page_leaves_out_shapes_and_files():
    card = tiny.card(files={".tflite": {"bytes": 1, "sha256": "0"}}, max_pixels=5)
    found = programs.load("train.visualize").card_of(types.SimpleNamespace(card=card))
    assert list(found) == ["class names", "preprocess", "output", "input dtype", "precision", "max pixels"]


@pytest.mark.parametrize(
    ("task", "expected"), [("segmentation", [0, 2, 255]), ("segmentation(ignore=2)", [0, -1, 255])]
)
def test_a_class_that_the_task_ignores_is_not_measured(task, expected, monkeypatch):
    program = programs.load("train.visualize")
    monkeypatch.setattr(program.examples, "mask_as_seen", lambda content, mask, pp, count: mask)
    masks = np.empty(1, object)
    masks[0] = np.array([[0, 2, 255]])
    found = sample_images.SampleImages([b"a"], masks, ["a.png"])
    seen = program.masks_as_seen(found, tiny.card("mask", recipe={"task": task}))
    assert seen.tolist() == [[expected]]
    assert program.masks_as_seen(found._replace(labels=None), tiny.card("mask")) is None


def test_examples_are_resized_and_cropped_but_not_normalized():
    contents = golden_data.path("images/tall.jpg").read_bytes()
    geometry = "decode|resize_small(20)|central_crop(16)"
    example = examples.load(contents, "a/b.jpg", f"{geometry}|value_range(-1, 1)")
    assert (example.name, example.pixels.dtype, example.pixels.shape) == ("b.jpg", np.uint8, (16, 16, 3))
    np.testing.assert_allclose(example.image, example.pixels / 127.5 - 1, atol=1e-5)


def test_example_pixels_equal_the_input_of_the_classifier():
    source = data.open_source("digits", split="test")
    found = sample_images.from_source(source, 4)
    numbers = [int(name.partition("#")[2]) for name in found.names]
    # From the first image to the last, one third of the data set apart.
    np.testing.assert_allclose(numbers, np.linspace(0, source.num_examples - 1, 4), atol=1)
    for contents, name, label in zip(found.contents, found.names, found.labels, strict=True):
        example = examples.load(contents, name, "decode(1)|value_range(-1, 1)", label)
        fetched = source.fetch(tf.constant(int(name.partition("#")[2])))
        np.testing.assert_array_equal(example.pixels, fetched["image"])
        np.testing.assert_allclose(example.image, fetched["image"].numpy() / 127.5 - 1, atol=1e-6)
        assert example.label == int(fetched["label"])
