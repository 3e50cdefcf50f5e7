"""`train.visualize` on everything that it opens."""

import base64
import io
import json
import re
import types
from xml.etree import ElementTree

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import flagsaver
from PIL import Image

from keras_vit import checkpoints, data, inference, models
from keras_vit._values import Values
from keras_vit.data import preprocess
from keras_vit.evaluators import ClassificationMetrics, classification, regression
from keras_vit.inference import outputs, sample_images
from keras_vit.inspection import examples, report
from tests import golden_data, programs, tiny
from tests.inspection import browser, small

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
def test_a_run(digits):
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


def test_a_model_of_values(tmp_path):
    true = np.array([[1.0], [2.0], [4.0]])
    results = regression.Regression().describe(regression.to_result(true, true + 0.25, ["age"]))
    path = report.write_report(str(tmp_path), "Ages", [], None, (), results=results, data="test split")
    with open(path, encoding="utf-8") as file:
        html = file.read()
    assert re.findall("<dd>(.*?)</dd><dt>(.*?)</dt>", html) == [
        ("0.25", "mae, test split"),
        ("0.25", "rmse, test split"),
        ("0.9598", "r2, test split"),
        ("3", "images evaluated"),
    ]
    assert "<h2>Predicted against true values</h2>" in html
    assert (tmp_path / "figures" / "predicted_against_true.svg").exists()


@pytest.mark.slow
def test_the_values_of_an_image_are_under_it(tmp_path):
    values = Values(("age", "height"), mean=(40.0, 1.7), deviation=(10.0, 0.1))
    tiny.regression(values).save(tmp_path / "model.keras")
    (tmp_path / "one.png").write_bytes(tiny.images(1).contents[0])
    model, pp = tmp_path / "model.keras", "value_range(-1, 1)"
    (expected,) = inference.open_predictor(model, preprocess=pp).predict(tmp_path / "one.png").tolist()
    html, _ = visualize(tmp_path, f"--model={model}", f"--preprocess={pp}", f"--images={tmp_path}/one.png")
    assert re.findall(r'<span title="[^"]*">(age|height)</span><b>([^<]*)</b>', html) == [
        (name, f"{value:.5g}") for name, value in zip(values.names, expected, strict=True)
    ]
    assert "has no head" not in html
    card = inference.ModelCard((), "", "values", (8, 8, 3), values=values.to_dict())
    shown = programs.load("train.visualize").values_of(card, [1.5, 2], [3, 4])
    assert shown == [("age", "1.5, true 3"), ("height", "2, true 4")]


def test_the_page_puts_the_accuracy_into_context(tmp_path):
    """Nine of ten images are of the class that is always predicted."""
    metrics = ClassificationMetrics(2)
    metrics.update(np.eye(2)[np.zeros(20, int)], np.repeat([0, 1], [18, 2]))
    results = classification.Classification().describe(classification.to_result(metrics.result()))
    path = report.write_report(str(tmp_path), "Rare", [], None, ("often", "rare"), results=results, data="test split")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert "95% confidence interval 69.90% to 97.21%" in text  # Wilson's, of 18 of 20
    assert "Not better than always predicting the largest class" in text
    assert "balanced accuracy" in text and "50.00%" in text


@pytest.mark.slow
def test_the_report_in_a_browser(digits):
    if browser.find() is None:
        pytest.skip("no browser: install Debian's chromium to check the report in one")
    directory, _, _ = digits
    with browser.Browser(directory / "profile") as opened:
        opened.open((directory / "report" / "report.html").as_uri(), "document.documentElement.dataset.drawn === '3'")
        assert opened.evaluate("document.getElementById('layer-name').textContent") == "1 to 2: encoderblock_1"
        opened.evaluate("document.getElementById('layer').focus()")
        opened.press("ArrowLeft", 37)
        assert opened.evaluate("document.getElementById('layer-name').textContent") == "1 to 1: encoderblock_0"
        assert opened.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
        assert opened.problems == []


@pytest.mark.slow
def test_a_keras_file_without_a_run(tmp_path):
    small.model(image_size=16, patch_size=8).save(tmp_path / "model.keras")
    images = tmp_path / "Blüte, pink"
    images.mkdir()
    for given, name in (("tall", "a, b"), ("wide", "c")):
        (images / f"{name}.jpg").write_bytes(golden_data.path(f"images/{given}.jpg").read_bytes())
    html, data = visualize(
        tmp_path / "report", f"--model={tmp_path / 'model.keras'}", f"--images={images}/*.jpg", "--num_images=2"
    )
    assert [image["name"] for image in data["images"]] == ["a, b.jpg", "c.jpg"]
    shown = re.search(r'id="image-1".*?base64,(.*?)"', html)[1]
    assert Image.open(io.BytesIO(base64.b64decode(shown))).size == (16, 16)  # as the model sees it
    assert "<h1>model.keras</h1>" in html
    assert "<h2>Training</h2>" not in html


@pytest.mark.slow
def test_a_checkpoint_with_attention_pooling(tmp_path):
    model = small.model(image_size=16, pooling="map")
    checkpoints.save_checkpoint(model, tmp_path / "map.npz", format="big_vision")
    picture = golden_data.path("images/tall.jpg")
    pp = "decode|resize_small(20)|central_crop(16)|value_range(-1, 1)"
    html, data = visualize(tmp_path / "report", f"--model={tmp_path / 'map.npz'}", f"--preprocess={pp}", str(picture))
    assert data["views"][-1]["frames"][-1] == "3: MAPHead_0"


@pytest.mark.slow
def test_a_resnet(tmp_path):
    model = tiny.randomize(models.BiTResNet((1,), image_size=32, classes=3))
    model.save(tmp_path / "bit.keras")
    picture = golden_data.path("images/small.png")
    html, data = visualize(tmp_path / "report", f"--model={tmp_path / 'bit.keras'}", f"--images={picture}")
    assert [view["key"] for view in data["views"]] == ["occlusion"]
    assert "has no attention" in html
    assert "<h2>Filters of the first layer</h2>" in html


@pytest.mark.slow
def test_a_users_own_model_around_one(tmp_path):
    inputs = keras.Input((16, 16, 3))
    features = small.model(image_size=16, include_top=False)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(features))
    model.save(tmp_path / "own.keras")
    picture = golden_data.path("images/small.png")
    html, data = visualize(tmp_path / "report", f"--model={tmp_path / 'own.keras'}", f"--images={picture}")
    assert [view["key"] for view in data["views"]] == ["rollout", "relevance", "layers"]
    image = preprocess.single_image("decode|resize(16)|value_range(-1, 1)")(tf.io.read_file(str(picture)))
    share = float(np.max(model(image[None])))
    assert f"<b>{share:.1%}</b>" in html  # the softmax is not taken twice


@pytest.mark.slow
def test_a_headless_model(tmp_path):
    checkpoints.save_checkpoint(small.model(image_size=16, include_top=False), tmp_path / "body.npz", format="google")
    picture = golden_data.path("images/small.png")
    html, data = visualize(tmp_path / "report", f"--model={tmp_path / 'body.npz'}", f"--images={picture}")
    assert [view["key"] for view in data["views"]] == ["rollout", "layers"]
    assert "This model has no head" in html
    assert 'class="chip' not in html


@pytest.mark.slow
def test_an_exported_model(digits, tmp_path):
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


@pytest.mark.slow
def test_labels_and_preprocessing_in_place_of_those_of_a_run(digits, tmp_path):
    directory, _, _ = digits
    names = [f"digit {number}" for number in range(10)]
    (tmp_path / "labels.txt").write_text("\n".join(names), encoding="utf-8")
    html, data = visualize(
        tmp_path / "report",
        *(f"--model={directory / 'run'}", f"--labels={tmp_path / 'labels.txt'}", "--preprocess=value_range(0, 1)"),
        *("--num_images=1", "--distance_images=1", "--evaluated_images=10"),
    )
    assert "digit 3" in html and "value_range(0, 1)" in html and "value_range(-1, 1)|" not in html


def test_the_page_of_a_checkpoint_names_its_step(tmp_path):
    note_of = programs.load("train.visualize").note_of
    card = types.SimpleNamespace(recipe={"total_steps": 30}, metrics={"step": 20})
    for checkpoint, words in (("best", "step 20 of 30"), ("22", "step 22 of 30"), ("last", "")):
        with flagsaver.flagsaver(checkpoint=checkpoint):
            note = note_of(str(tmp_path), card)
        assert words in note and ("not finished" in note) == bool(words)
    (tmp_path / "model.keras").touch()
    with flagsaver.flagsaver(checkpoint="best"):
        assert "not finished" not in note_of(str(tmp_path), card)


@pytest.mark.slow
def test_errors(tmp_path):
    picture = golden_data.path("images/small.png")
    for arguments, message in [
        ([], "--model is missing"),
        ([f"--model={tmp_path}"], "--output is missing"),
        (["--model=x", f"--output={tmp_path}"], "at 'x'"),
    ]:
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            programs.call("train.visualize", *arguments)
    small.model(image_size=16).save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="--images is missing: the data set"):
        programs.call("train.visualize", f"--model={tmp_path / 'model.keras'}", f"--output={tmp_path}")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        programs.call(
            "train.visualize",
            f"--model={tmp_path / 'model.keras'}",
            f"--output={tmp_path}",
            "--images=nowhere.jpg",
            f"--images={picture}",
        )


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
    assert list(found) == ["class names", "preprocess", "output", "input", "precision", "max pixels"]


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


def test_examples_see_what_the_classifier_sees():
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


class TestChoice:
    sure = np.array([0.9, 0.6, 0.7, 0.8, 0.9, 0.6, 0.7, 0.8])

    def right(self, mistakes):
        return ~np.isin(np.arange(8), mistakes)

    def test_half_are_mistakes_the_most_confident_first(self):
        assert examples.choose(4, self.right([1, 2, 4]), self.sure, 8) == [4, 2, 0, 7]

    def test_fewer_mistakes(self):
        assert examples.choose(4, self.right([2]), self.sure, 8) == [2, 0, 4, 7]
        assert examples.choose(3, self.right([]), self.sure, 8) == [0, 4, 7]

    def test_more_mistakes_where_little_is_right(self):
        assert len(examples.choose(6, self.right(range(7)), self.sure, 8)) == 6

    def test_without_labels(self):
        assert examples.choose(3, None, None, 8) == [0, 4, 7]
        assert examples.choose(99, None, None, 2) == [0, 1]

    def test_one_of_several_labels_is_enough(self):
        rows = np.array([[1, 1], [0, 1], [0, 0]])
        found = outputs.is_correct(np.array([0, 0, 1]), rows)
        assert found.tolist() == [True, False, False]
