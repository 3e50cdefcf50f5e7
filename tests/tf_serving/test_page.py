"""The page of the development server: its responses, its health and metrics, and how it works in a browser."""

import base64
import contextlib
import dataclasses
import math
import re
import threading
import types
import urllib.error
import urllib.request

import numpy as np
import pytest

from export.serving.metrics import Metrics
from export.serving.page import Page
from export.serving.served_model import ServedModel
from keras_vit import inference, models, tf_serving
from keras_vit.data import headers
from keras_vit.inference import masks
from keras_vit.inference.keras_card import card_of_model
from keras_vit.inference.masks import palette
from keras_vit.inference.predictor import FunctionPredictor
from keras_vit.util.values import Values
from tests import tiny
from tests.data import bombs
from tests.inspection import browser
from tests.tf_serving import servers

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'keras-vision-transformers[serving]'")

HOSTILE = "</script><script>throw 'x'</script><img src=x onerror=alert(1)> & \"'"
NAMES = (HOSTILE, *tiny.CLASS_NAMES[1:])


def image_file(seed=0, kind="PNG"):
    return tiny.encode(tiny.arrays(1, seed=seed)[0], kind)


@pytest.fixture(scope="module")
def classes():
    card = dataclasses.replace(tiny.card(), class_names=NAMES)
    examples = {HOSTILE: image_file(7)}
    return ServedModel(HOSTILE, inference.KerasPredictor(tiny.model(num_layers=1), card), examples)


@pytest.fixture(scope="module")
def running(classes):
    with servers.serving_model(classes) as url:
        yield url


def get(url):
    """Status, text and headers of a response."""
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return response.status, response.read().decode(), response.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


class TestPredictions:
    @pytest.mark.slow
    def test_page_shows_the_predictions_of_artifacts_and_models(self, served):
        """Both show the client's result."""
        for model in (servers.loaded(served[1]), ServedModel("pets", inference.KerasPredictor(served[0], tiny.card()))):
            found = Page(model).predict(bytearray(image_file()))
            with servers.serving_model(model) as url:
                (expected,) = tf_serving.Client(url, "pets").predict([image_file()])
            assert found["kind"] == "probabilities"
            assert [part["name"] for part in found["parts"]] == expected.labels
            assert [part["number"] for part in found["parts"]] == pytest.approx(expected.scores)

    @pytest.mark.slow
    def test_page_shows_regression_values(self):
        values = Values.from_dict({"names": ["year", "mass"], "mean": [1950.0, 3.0], "deviation": [10.0, 1.0]})
        predictor = inference.KerasPredictor(
            (model := tiny.regression(values)), card_of_model(model, "", tiny.PREPROCESS)
        )
        found = Page(ServedModel("years", predictor)).predict(bytearray(image_file()))
        expected = predictor.predict([image_file()])[0]
        assert found["kind"] == "values"
        assert [part["name"] for part in found["parts"]] == ["year", "mass"]
        assert [part["number"] for part in found["parts"]] == pytest.approx(expected)

    @pytest.mark.slow
    def test_page_shows_masks(self):
        model = tiny.model(head=models.LinearSegmenter(3))
        model.class_names = ("sky", "sea", "sand")
        predictor = inference.KerasPredictor(model, card_of_model(model, "", tiny.PREPROCESS))
        found = Page(ServedModel("views", predictor)).predict(bytearray(image_file()))
        (expected,) = predictor.card.at_image_sizes(predictor.predict([image_file()]), [image_file()])
        mask = masks.from_png(base64.b64decode(found["mask"].partition(",")[2]))
        np.testing.assert_array_equal(mask, expected)
        for part in found["parts"]:
            index = model.class_names.index(part["name"])
            assert part["number"] == pytest.approx(np.mean(expected == index))
            assert part["color"] == palette(3)[index].tolist()

    def test_page_states_the_shape_of_features(self):
        """It has no names: the page states the shape."""
        card = dataclasses.replace(tiny.card(), class_names=(), output="features")
        outputs = {"features": [0.5] * 16, "valid": True}
        page = Page(
            types.SimpleNamespace(
                name="x", version=1, card=card, examples={}, predict_image=lambda _: outputs, scores_of=None
            )
        )
        assert page.predict(bytearray(image_file())) == {"kind": "features", "shape": (16,)}
        with pytest.raises(tf_serving.RequestError, match="features"):
            page.explain(bytearray(image_file()))

    @pytest.mark.parametrize("content", [b"", b"bad", bombs.BOMBS["PNG"], bombs.BOMBS["GIF"]])
    def test_unreadable_images_are_refused(self, classes, content):
        for method in (Page(classes).predict, Page(classes).explain):
            with pytest.raises(tf_serving.RequestError, match="image"):
                method(bytearray(content))


class TestExplanations:
    @pytest.fixture
    def page(self):
        """The page of a model that reads only rows 4 and 5 and columns 10 and 11 of 16."""

        def function(images):
            logits = 8.0 * np.asarray(images)[:, 4:6, 10:12].mean(axis=(1, 2, 3))
            return None, np.stack([-logits, logits], axis=-1)

        card = inference.ModelCard(("dark", "bright"), "decode|resize(16)|value_range(0, 1)", "sigmoid", (16, 16, 3))
        predictor = FunctionPredictor(card, function)
        return Page(ServedModel("light", predictor))

    def test_explanation_highlights_the_decisive_region(self, page):
        pixels = np.full((16, 16, 3), 51, np.uint8)
        pixels[4:6, 10:12] = 255
        mean = pixels.mean() / 255
        found = page.explain(bytearray(tiny.encode(pixels, "PNG")))
        bright, dark = found["maps"]
        assert (bright["name"], dark["name"]) == ("bright", "dark")
        expected = np.zeros((8, 8))
        expected[2, 5] = 1 / (1 + math.exp(-8)) - 1 / (1 + math.exp(-8 * mean))
        np.testing.assert_allclose(bright["falls"], expected, atol=1e-6)
        np.testing.assert_allclose(dark["falls"], -expected, atol=1e-6)
        assert base64.b64decode(found["image"].partition(",")[2]) == masks.to_png(pixels)

    def test_concurrent_explanations_are_refused(self, page, monkeypatch):
        def check(*arguments, **options):
            with pytest.raises(tf_serving.RequestError) as caught:
                page.explain(bytearray(image_file()))
            refused.append(caught.value.status)
            return original(*arguments, **options)

        refused, original = [], headers.check
        monkeypatch.setattr(headers, "check", check)
        page.explain(bytearray(image_file()))
        monkeypatch.setattr(headers, "check", original)
        page.explain(bytearray(image_file()))
        assert set(refused) == {503}


class TestRoutes:
    def test_content_security_policy_allows_only_scripts_and_styles_of_the_server(self, running):
        status, html, found = get(running)
        assert status == 200 and found["content-type"].startswith("text/html")
        assert found["x-content-type-options"] == "nosniff"
        policy = dict(directive.split(" ", 1) for directive in found["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        for name in ("script-src", "style-src"):
            assert re.fullmatch(r"'sha256-[\w+/]{43}='", policy[name])
        assert "<script>throw" not in html and "<img src=x" not in html
        assert not re.search(r"https?://", html)
        assert "Development server" in html and "TensorFlow Serving for production" in html

    @pytest.mark.slow
    def test_server_is_ready_after_the_first_prediction(self):
        may_predict = threading.Event()

        class Slow(inference.KerasPredictor):
            def predict(self, images):
                may_predict.wait(60)
                return super().predict(images)

        model = ServedModel("pets", Slow(tiny.model(num_layers=1), tiny.card()))
        with servers.serving_model(model) as url, contextlib.ExitStack() as stack:
            stack.callback(may_predict.set)
            assert [get(f"{url}/{path}")[0] for path in ("healthz", "readyz")] == [200, 503]
            may_predict.set()
            servers.wait_until(lambda: get(f"{url}/readyz")[0] == 200)

    @pytest.mark.slow
    def test_a_model_that_cannot_predict_is_never_ready(self, caplog):
        model = ServedModel("pets", inference.KerasPredictor(tiny.model(num_layers=1), tiny.card()))
        model.predict = None
        model.warm_up()
        assert not model.is_warm and "/readyz" in caplog.text

    @pytest.mark.slow
    def test_metrics_count_predictions(self, served):
        with servers.serving(served[1]) as (_, url):
            for body in (b'{"instances": ["a"]}', b'{"instances": ["b"]}', b"{"):
                servers.post(url, body)
            servers.post(url, image_file(), "/page/predict")
            get(f"{url}/v1/models/pets")
            status, text, found = get(f"{url}/metrics")
            assert get(f"{url}/monitoring/prometheus/metrics")[1] == text
        assert status == 200 and found["content-type"].startswith("text/plain; version=0.0.4")
        counts = dict(
            re.findall(r'^:tensorflow:serving:request_count{model_name="pets",status="(\w+)"} (\d+)$', text, re.M)
        )
        assert counts == {"OK": "3", "INVALID_ARGUMENT": "1"}

    def test_metrics_follow_the_prometheus_format(self):
        """Latencies are cumulative in buckets of microseconds, and names are escaped."""
        metrics = Metrics('a "b"\\\n')
        for status, seconds in ((200, 1e-5), (200, 15e-6), (200, 1e9), (500, 1.0), (418, 1.0)):
            metrics.record(status, seconds)
        lines = metrics.render().splitlines()
        model = r'model_name="a \"b\"\\\n"'
        assert f':tensorflow:serving:request_count{{{model},status="INTERNAL"}} 2' in lines
        labels = f'{model},API="Predict",entrypoint="REST"'
        start = f":tensorflow:serving:request_latency_bucket{{{labels},le="
        buckets = [line.removeprefix(start) for line in lines if line.startswith(start)]
        assert buckets[:3] == ['"10"} 1', '"18"} 2', '"32.4"} 2'] and buckets[-2:] == ['"1.47476e+09"} 2', '"+Inf"} 3']
        assert f":tensorflow:serving:request_latency_count{{{labels}}} 3" in lines
        assert f":tensorflow:serving:request_latency_sum{{{labels}}} 1000000000000025" in lines  # microseconds


@pytest.fixture(scope="module")
def opened(running, tmp_path_factory):
    if browser.find() is None:
        pytest.skip("no browser: install Debian's chromium to check the page in one")
    with browser.Browser(tmp_path_factory.mktemp("browser")) as found:
        found.open(running, "true")
        yield found


def give(page, event, content, kind="image/png"):
    """Drops or pastes a file."""
    data, options = ("dataTransfer", "DragEvent") if event == "drop" else ("clipboardData", "ClipboardEvent")
    encoded = base64.b64encode(content).decode()
    page.evaluate(f"""(() => {{
      const bytes = Uint8Array.from(atob("{encoded}"), (character) => character.charCodeAt(0));
      const transfer = new DataTransfer();
      transfer.items.add(new File([bytes], "file", {{ type: "{kind}" }}));
      document.dispatchEvent(new {options}("{event}", {{ {data}: transfer, cancelable: true }}));
    }})()""")


def shown(page):
    """Names and numbers of the prediction, when it is there."""
    page.wait("document.getElementById('status').textContent.startsWith('Predicted')")
    rows = page.evaluate(
        "[...document.querySelectorAll('#parts li')].map((row) => [...row.children].map((e) => e.textContent))"
    )
    return [(row[0], row[2]) for row in rows]


def expected(classes, content):
    parts = Page(classes).predict(bytearray(content))["parts"]
    return [(part["name"], f"{100 * part['number']:.1f}%") for part in parts]


@pytest.mark.slow
class TestInABrowser:
    def test_dropped_and_pasted_images_are_predicted(self, opened, classes):
        for seed, event in enumerate(("drop", "paste")):
            give(opened, event, image_file(seed))
            assert shown(opened) == expected(classes, image_file(seed))
        assert expected(classes, image_file(0)) != expected(classes, image_file(1))
        assert opened.evaluate("document.getElementById('image').naturalWidth") == 24

    def test_example_images_are_predicted(self, opened, classes):
        opened.evaluate("document.getElementById('status').textContent = ''")
        opened.click("#examples button")
        assert shown(opened) == expected(classes, image_file(7))

    def test_formats_that_only_the_browser_reads_are_converted(self, opened, classes, tmp_path):
        """A GIF of at most 27 colors, which it keeps."""
        pixels = tiny.arrays(1, seed=5)[0] // 86 * 86
        (tmp_path / "image.gif").write_bytes(tiny.encode(pixels, "GIF"))
        opened.evaluate("document.getElementById('status').textContent = ''")
        element = opened.send("Runtime.evaluate", expression="document.getElementById('file')")["result"]["objectId"]
        opened.send("DOM.setFileInputFiles", files=[str(tmp_path / "image.gif")], objectId=element)
        assert shown(opened) == expected(classes, tiny.encode(pixels, "PNG"))

    def test_camera_images_are_predicted(self, opened):
        opened.click("#camera")
        opened.wait("document.getElementById('video').videoWidth > 0")
        opened.click("#shoot")
        opened.wait("document.getElementById('finder').hidden")
        assert len(shown(opened)) == 5
        assert opened.evaluate("document.getElementById('video').srcObject.active") is False
        assert opened.evaluate("document.getElementById('image').naturalWidth") > 24

    def test_explanation_map_is_shown(self, opened, classes):
        give(opened, "drop", image_file())
        names = [name for name, _ in shown(opened)]
        opened.click("#explain")
        opened.wait("!document.getElementById('map').hidden")
        assert opened.evaluate("[...document.getElementById('which').options].map((option) => option.text)") == names
        data = "document.getElementById('shade').getContext('2d').getImageData(0, 0, 8, 8).data"
        darkness = f"[...{data}].filter((_, index) => index % 4 === 3)"
        for index, one in enumerate(Page(classes).explain(bytearray(image_file()))["maps"]):
            opened.evaluate(
                f"(() => {{ const which = document.getElementById('which'); which.value = {index};"
                " which.dispatchEvent(new Event('change')); })()"
            )
            falls = np.maximum(np.ravel(one["falls"]), 0)
            np.testing.assert_allclose(opened.evaluate(darkness), 255 * 0.85 * (1 - falls / falls.max()), atol=1.01)

    def test_file_that_is_not_an_image_shows_an_error(self, opened):
        give(opened, "drop", b"text", "text/plain")
        opened.wait("document.getElementById('status').className === 'wrong'")
        assert opened.evaluate("document.getElementById('result').hidden")

    def test_page_fits_a_phone_in_dark_mode(self, opened):
        give(opened, "drop", image_file())
        shown(opened)
        opened.look("dark", 390)
        assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"
        opened.look("light", 1240)

    def test_browser_reports_no_errors_and_no_external_requests(self, opened, running):
        assert opened.problems == []
        asked = {url for url in opened.requests if not url.startswith(("data:", "blob:"))}
        assert asked <= {f"{running}/", *(f"{running}/page/{name}" for name in ("predict", "explain", "examples/0"))}
