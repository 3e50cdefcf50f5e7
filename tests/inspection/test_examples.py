"""Selection of the images of a page, with expected values by hand."""

import re

import numpy as np
import pytest

from keras_vit import models
from keras_vit.evaluators import Result, regression
from keras_vit.inspection import examples, gradient_attention
from tests.inspection import small
from train.report import cards, report

pytest.importorskip("matplotlib", reason="the report needs matplotlib")


def test_most_confident_mistakes_come_first():
    """Half of the examples are mistakes, and the others are spread over the correct predictions."""
    right = np.array([True, False, True, False, True, False, True, True])
    sure = np.array([0.9, 0.6, 0.8, 0.9, 0.7, 0.7, 0.6, 0.55])
    assert examples.choose(4, right, sure, 8) == [3, 5, 0, 7]
    assert examples.choose(8, right, sure, 8) == [3, 5, 1, 0, 2, 4, 6, 7]
    assert examples.choose(6, right[[1, 3, 5]], sure[[1, 3, 5]], 3) == [1, 2, 0]  # nothing was right


def test_examples_without_labels_are_evenly_spaced():
    assert examples.choose(3, None, None, 9) == [0, 4, 8]
    assert examples.choose(5, None, None, 2) == [0, 1]


@pytest.mark.parametrize(
    ("label", "best", "truth"),
    [
        (None, 1, (None, None)),
        (1, 1, ("dog", True)),
        (1, 0, ("dog", False)),
        (1, None, ("dog", None)),
        ([1, 0, 1], 2, ("cat, bird", True)),
        ([1, 0, 1], 1, ("cat, bird", False)),
        ([0, 0, 0], 0, ("none", False)),
    ],
)
def test_example_states_true_classes_and_correctness(label, best, truth):
    label = np.array(label) if isinstance(label, list) else label
    assert cards._truth(label, best, ("cat", "dog", "bird")) == truth


def test_examples_of_an_exported_model_have_five_predictions_and_attention():
    """The first of equal classes comes first."""
    numbers = np.array([0.1, 0.1, 0.3, 0.1, 0.1, 0.2, 0.1])
    image = np.zeros((16, 8, 3), np.float32)
    example = examples.Example("a", np.zeros((16, 8, 3), np.uint8), image, attention=np.ones((2, 4, 2)))
    predict = lambda images: np.tile(numbers, (len(images), 1))  # noqa: E731
    (card,), views = cards.image_cards([example], predict, tuple("abcdefg"), None)
    assert card.predictions == [("c", 0.3), ("f", 0.2), ("a", 0.1), ("b", 0.1), ("d", 0.1)]
    assert {name: maps.shape for name, maps in card.maps.items()} == {"occlusion": (1, 1, 8, 8), "layers": (2, 1, 4, 2)}
    assert [view.frames for view in views] == [("whole model",), ("block 1", "block 2")]


def test_card_of_a_mask_shows_iou_per_class():
    """Of the first class one of two pixels is right, of the second none: a quarter."""
    masks = {"mask": np.array([[0, 0], [-1, -1]]), "predicted": np.array([[1, 0], [1, 1]])}
    example = examples.Example("a", np.zeros((2, 2, 3), np.uint8), np.zeros((2, 2, 3)), **masks)
    fields = cards._mask_fields(example, ("sky", "sea", "sand"))
    assert fields["predictions"] == [("sea", 0.75), ("sky", 0.25)] and fields["note"] == "mIoU 25.0%"
    (predicted, of_predicted), (true, of_true) = fields["overlays"]
    assert (predicted, true) == ("predicted", "true") and (of_predicted[0, 0] != of_true[0, 0]).any()
    assert (of_predicted[0, 1] == of_true[0, 1]).all() and len(fields["colors"]) == 2
    assert cards._mask_fields(examples.Example("a", example.pixels, example.image, mask=example.mask), ()) == {}


def test_pixels_per_class_are_counted_in_the_true_masks():
    found = {"confusion": np.array([[3, 1], [0, 2]]), "per_class": {"iou": np.array([0.75, 2 / 3])}}
    classes = report._classes(found, ("sky", "sea"))
    assert classes.counts.tolist() == [4, 2] and classes.of_pixels
    assert report._classes(Result().details, ()) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "keys"), [("map", ["rollout", "relevance", "layers"]), ("all_tokens", ["rollout", "layers"])]
)
def test_maps_depend_on_the_head_of_the_model(name, keys):
    """A model without a head has no relevance; the last frame of pooling attention is that of its layer."""
    model, image = small.shared(name), small.images(1)[0]
    example = examples.Example("a", np.zeros((32, 24, 3), np.uint8), image)
    predict = None if name == "all_tokens" else lambda images: np.asarray(model(images))
    (card,), views = cards.image_cards([example], predict, tuple("abcdefg"), model)
    assert [view.key for view in views] == keys and set(card.maps) == set(keys)
    assert [frame == "3: MAPHead_0" for frame in views[-1].frames] == [False, False, True][: len(views[-1].frames)]
    if name == "map":
        expected = gradient_attention(model, image[None], int(np.argmax(model(image[None]))))
        np.testing.assert_allclose(card.maps["relevance"][0], expected, rtol=1e-5)


@pytest.mark.slow
def test_report_of_a_resnet_has_no_attention_maps(tmp_path):
    network = models.BiTResNet((1,), image_size=32, classes=3)
    example = examples.Example("a", np.zeros((32, 32, 3), np.uint8), np.zeros((32, 32, 3), np.float32))
    predict = lambda images: np.tile([0.2, 0.5, 0.3], (len(images), 1))  # noqa: E731
    path = report.write_report(str(tmp_path), "BiT", [example], predict, tuple("abc"), model=network)
    with open(path, encoding="utf-8") as file:
        html = file.read()
    assert "<h2>Filters of the first layer</h2>" in html and "Attention distance" not in html
    assert '"key":"occlusion"' in html.replace(" ", "") and '"key":"rollout"' not in html.replace(" ", "")


def test_report_of_a_regression_has_no_classes(tmp_path):
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
