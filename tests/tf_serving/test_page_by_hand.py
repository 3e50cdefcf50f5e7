"""Responses of the page to predictors whose predictions are known, and the text of the metrics."""

import base64
import io
import types
import urllib.request

import numpy as np
import pytest
from PIL import Image

from export.serving.metrics import Metrics
from export.serving.page import Page
from export.serving.served_model import ServedModel
from keras_vit import inference
from keras_vit.inference import masks
from keras_vit.inference.masks import palette
from keras_vit.inference.predictor import FunctionPredictor
from keras_vit.util.values import Values
from tests import tiny
from tests.tf_serving import servers

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'keras-vision-transformers[serving]'")

PREPROCESS = "decode|resize((8, 16))|value_range(0, 1)"


def page_of(scores, names=(), values=None, **options):
    """The page of a model of images of 8 x 16 pixels that always returns the same scores."""
    output = "values" if values else "softmax"
    card = inference.ModelCard(names, PREPROCESS, output, (8, 16, 3), values=values or {})
    predictor = FunctionPredictor(card, lambda images: (None, np.tile(np.float32(scores), (len(images), 1))))
    return Page(ServedModel("pets", predictor, **options))


def image_file(seed=0):
    return tiny.encode(tiny.arrays(1, seed=seed)[0], "PNG")


def test_the_subtitle_states_width_and_height():
    assert "Version 1. Input: 16 x 8 pixels. Output: probabilities." in page_of([0.0, 1.0], ("a", "b")).html


def test_only_the_most_probable_classes_are_explained():
    found = page_of([0, 2, 1, 3, 6, 5, 4], tiny.CLASS_NAMES).explain(bytearray(image_file()))
    assert [part["name"] for part in found["maps"]] == ["élan", "fox", "gnu", "dog", "bee"]


def test_ties_are_explained_in_class_order():
    """NumPy's default order of more than 16 numbers is not stable."""
    names = tuple(f"class {number}" for number in range(40))
    found = page_of(np.arange(40) % 2, names).explain(bytearray(image_file()))
    assert [part["name"] for part in found["maps"]] == [f"class {number}" for number in (1, 3, 5, 7, 9)]


def test_all_values_are_explained_in_the_order_of_their_names():
    names = ("a", "b", "c", "d", "e", "f")
    values = Values(names, (0.0,) * 6, (1.0,) * 6).to_dict()
    found = page_of([1, 6, 2, 5, 3, 4], values=values).explain(bytearray(image_file()))
    assert [(part["name"], part["number"]) for part in found["maps"]] == list(
        zip(names, [1, 6, 2, 5, 3, 4], strict=True)
    )


def test_the_colors_of_a_mask_are_the_colors_of_its_classes():
    """The PNG file has 256 colors, which repeat."""
    names = tuple(f"class {number}" for number in range(300))
    mask = np.array([[1, 1, 299]])
    card = inference.ModelCard(names, PREPROCESS, "mask", (8, 16, 3))
    content = {"b64": base64.b64encode(masks.to_png(mask)).decode()}
    model = types.SimpleNamespace(name="x", version=1, card=card, examples={}, scores_of=None)
    model.predict_image = lambda _: {"mask_bytes": content, "valid": True}
    found = Page(model).predict(bytearray(image_file()))
    shown = Image.open(io.BytesIO(base64.b64decode(found["mask"].partition(",")[2]))).convert("RGB")
    assert [part["name"] for part in found["parts"]] == ["class 1", "class 299"]
    for part, number, x in zip(found["parts"], (1, 299), (0, 2), strict=True):
        assert tuple(part["color"]) == shown.getpixel((x, 0)) == tuple(palette(256)[number % 256].tolist())


def test_each_example_has_its_own_image():
    examples = {"a/1.png": image_file(1), "b/2.png": image_file(2), "c/3.png": image_file(3)}
    page = page_of([0.0, 1.0], ("a", "b"), examples=examples)
    with servers.serving_model(page._model) as url:
        for index, (name, content) in enumerate(examples.items()):
            assert f'<img alt="{name}" src="page/examples/{index}">' in page.html
            with urllib.request.urlopen(f"{url}/page/examples/{index}", timeout=30) as response:
                assert response.read() == content


def test_http_statuses_map_to_tensorflow_status_names():
    metrics = Metrics("pets")
    names = {
        200: "OK",
        400: "INVALID_ARGUMENT",
        404: "NOT_FOUND",
        408: "DEADLINE_EXCEEDED",
        413: "RESOURCE_EXHAUSTED",
        500: "INTERNAL",
        503: "UNAVAILABLE",
    }
    for status in names:
        metrics.record(status, 1.0)
    count = ":tensorflow:serving:request_count"
    lines = [line for line in metrics.render().splitlines() if line.startswith(f"{count}{{")]
    assert lines == [f'{count}{{model_name="pets",status="{name}"}} 1' for name in names.values()]
