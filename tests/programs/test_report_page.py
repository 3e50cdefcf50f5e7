"""The page: what is in it, and that it works in a browser."""

import base64
import dataclasses
import functools
import io
import json
import re
import types
from html import unescape

import numpy as np
import pytest
from PIL import Image as pil_image

from keras_vit import evaluators
from keras_vit.inspection import plots
from tests.inspection import browser
from train.report import report
from train.report._classes import Classes
from train.report._images import Gallery, ImageCard, View
from train.report.render import Figure, Page
from train.report.render import render as render_page

pytest.importorskip("matplotlib", reason="the page needs matplotlib")
HOSTILE = "</script><script>throw 'x'</script><img src=x onerror=alert(1)> & \"'\u2028"


def image(index=0, size=(40, 60), truth="cat", **changes):
    rng = np.random.default_rng(index)
    layers = np.zeros((3, 3, 2, 3), "float32")  # 3 layers; mean and 2 heads; 2 x 3 patches
    for layer in range(3):
        for head in range(3):
            layers[layer, head].flat[(layer + 3 * (head > 0)) % 6] = 1.0  # each layer lights a different patch
    card = ImageCard(
        f"image {index}",
        rng.integers(0, 256, (*size, 3)).astype("uint8"),
        [("cat", 0.75), ("dog", 0.25)],
        {"layers": layers, "rollout": np.ones((1, 1, 2, 3), "float32")},
        truth,
        None if truth is None else truth == "cat",
    )
    return dataclasses.replace(card, **changes)


VIEWS = [
    View("layers", "Attention by layer", "Where it attends.", ("first", "second", "third"), 2),
    View("rollout", "Attention rollout", "Followed.", ("all",)),
]
CLASSES = Classes(
    ("cat", "dog", "bird"),
    np.array([0.75, 0.5, np.nan]),
    np.array([4, 2, 0]),
    np.array([[3, 1, 0], [1, 1, 0], [0, 0, 0]]),
)


@functools.cache
def drawing():
    return plots.svg(plots.attention_distance(np.ones((2, 2))))


def render(**changes):
    figure = Figure("Distance", "How far.", [drawing()])
    content = Page(
        title="A model",
        subtitle="22 November 2026",
        tiles=[("97.8%", "accuracy, test split"), ("5", "classes")],
        notes=["A note."],
        images=[image(0), image(1, truth="dog"), image(2, (8, 8), truth=None)],
        views=VIEWS,
        num_mistakes=7,
        classes=CLASSES,
        figures=[figure],
        card={
            "preprocess": "decode|resize(8)",
            "class names": ["cat", "dog"],
            "parameters": 101514,
            "recipe": {"seed": 1},
        },
    )
    return render_page(dataclasses.replace(content, **changes))


def data_of(html):
    return json.loads(re.search(r'<script type="application/json" id="viewer-data">(.*?)</script>', html, re.DOTALL)[1])


def text_of(html):
    """The text of the page, without its markup."""
    body = re.sub(r"<(script|style).*?</\1>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_report_is_a_self_contained_file():
    html = render()
    assert "default-src 'none'" in html
    markup = re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    for address in re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"'\s>)]+)""", markup):
        assert address.startswith("data:"), address
    assert not re.search(r"https?://(?!www\.w3\.org/|matplotlib\.org|purl\.org)", html)
    for text in (
        "A model",
        "97.8% accuracy, test split",
        "A note.",
        "How far.",
        "decode|resize(8)",
        "cat, dog",
        "101,514",
    ):
        assert text in text_of(html)
    assert "{{" not in html


def test_mistakes_come_first_with_their_true_class():
    text = text_of(render(images=[image(0), image(1, truth="dog")]))
    assert (
        text.index("the 1 most confident of 7") < text.index("image 1") < text.index("Correct") < text.index("image 0")
    )
    assert "✗ cat 75.0% dog 25.0% true class: dog" in text
    assert "✓ cat 75.0%" in text
    assert "Mistakes" not in text_of(render(images=[image(2, truth=None)]))


def test_classes_are_listed_from_the_lowest_accuracy():
    html = render()
    text = text_of(html)
    assert text.index("dog 50.0% 2") < text.index("cat 75.0% 4")  # the weakest first; none without images
    matrix = re.search(r"<tbody>(.*?)</tbody>", html, re.DOTALL)[1]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in matrix.split("</tr>")[:3]]
    assert rows == [["3", "1", "·"], ["1", "1", "·"], ["·", "·", "·"]]
    assert "dog predicted as cat: 1" in matrix
    assert "Recall per class" in text_of(render(classes=dataclasses.replace(CLASSES, confusion=None)))


def test_most_frequent_confusions_of_many_classes_are_listed():
    count = 30
    confusion = np.diag(np.full(count, 9))
    confusion[3, 4], confusion[5, 6] = 8, 2
    names = [f"class {number}" for number in range(count)]
    text = text_of(render(classes=Classes(names, np.full(count, 0.9), np.full(count, 10), confusion)))
    assert "8 × class 3 predicted as class 4 2 × class 5 predicted as class 6" in text
    assert "18 more classes" in text


def classes_of(count, **changes):
    """As many classes, with nine images each and no mistakes."""
    names = [f"class {number}" for number in range(count)]
    return Classes(names, np.ones(count), np.full(count, 9), np.diag(np.full(count, 9)), **changes)


def test_a_matrix_has_twenty_classes_at_most_and_a_list_twelve():
    text = text_of(render(classes=classes_of(20)))
    assert "Confusion matrix" in text and "8 more classes" in text
    text = text_of(render(classes=classes_of(21)))
    assert "Most frequent confusions" in text and "There are no mistakes." in text
    assert "more class" not in text_of(render(classes=classes_of(12)))
    assert "1 more class " in text_of(render(classes=classes_of(13)))
    confusion = np.diag(np.full(21, 9)) + np.eye(21, k=1, dtype=int) * np.arange(2_000, 2_021)[:, None]
    text = text_of(render(classes=dataclasses.replace(classes_of(21), confusion=confusion)))
    assert "2,019 × class 19 predicted as class 20" in text
    assert "2,008 × " in text and "2,007 × " not in text  # twelve pairs


def test_cells_of_the_confusion_matrix_are_marked_as_correct_or_wrong():
    matrix = re.search(r"<tbody>(.*?)</tbody>", render(), re.DOTALL)[1]
    marks = re.findall(r'<td class="(\w+)"', matrix)
    assert [marks[:3], marks[3:6], marks[6:]] == [
        ["hit", "miss", "none"],
        ["miss", "hit", "none"],
        ["none", "none", "hit"],
    ]
    # Mistakes are tinted relative to the largest share of mistakes, which is one half of the dogs.
    tints = re.findall(r"--tint:([\d.]+)", matrix)
    assert tints == ["0.75", "0.50", "0.00", "1.00", "0.50", "0.00", "0.00", "0.00", "0.00"]
    assert 'class="upright"' in render()  # the names are long
    assert 'class="upright"' not in render(classes=dataclasses.replace(CLASSES, names=("cat", "dog", "cow")))


def test_pixels_are_shown_as_percentages_of_a_row():
    html = render(classes=dataclasses.replace(CLASSES, of_pixels=True))
    matrix = re.search(r"<tbody>(.*?)</tbody>", html, re.DOTALL)[1]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in matrix.split("</tr>")[:3]]
    assert rows == [["75", "25", "·"], ["50", "50", "·"], ["·", "·", "·"]]
    text = text_of(html)
    assert "Intersection over union per class" in text and "percentages of the pixels of a row" in text


def test_galleries_have_no_maps_and_empty_galleries_are_omitted():
    shown = [image(0, note="label: cat", truth=None), image(1, overlays=[(HOSTILE, image(2).pixels)])]
    html = render(galleries=[Gallery(HOSTILE, "Why.", shown), Gallery("Nothing", "", [])])
    assert "label: cat" in text_of(html) and "Nothing" not in text_of(html)
    assert html.count("<script") == 2 and html.count('id="image-0"') == 1  # only the image with maps


def test_names_that_are_not_utf_8_are_shown():
    assert b"<h2>a\\udcff</h2>" in render(galleries=[Gallery("a\udcff", "", [image(0)])]).encode()


def test_an_image_has_three_predictions_and_a_mask_eight():
    many = [(f"class {number}", 0.1) for number in range(9)]
    text = text_of(render(images=[image(predictions=many)], classes=None))
    assert "class 2" in text and "class 3" not in text
    text = text_of(render(images=[image(predictions=many, colors=[(1, 2, 3)] * 9)], classes=None))
    assert "class 7" in text and "class 8" not in text


def test_all_mistakes_are_not_the_most_confident_of_them():
    mistakes = [image(0, truth="dog"), image(1, truth="dog")]
    assert "Mistakes: the 2 most confident of 1,234 " in text_of(render(images=mistakes, num_mistakes=1_234))
    for known in (2, None):
        text = text_of(render(images=mistakes, num_mistakes=known))
        assert "Mistakes" in text and "most confident" not in text
    assert "true class: dog" in text_of(render(images=[image(predictions=[], truth="dog", correct=None)]))
    assert "true class:" not in text_of(render(images=[image()]))


@pytest.mark.parametrize(("size", "small"), [((63, 63), True), ((64, 10), False), ((10, 64), False)])
def test_small_images_are_not_smoothed(size, small):
    assert ('class="small"' in render(images=[image(size=size)])) == small


def test_headings_describe_the_images():
    plain = image(truth=None, maps={})
    noted = dataclasses.replace(plain, note="mIoU 25.0%", overlays=[("predicted", plain.pixels)])
    text = text_of(render(images=[noted], views=[]))
    assert "The lowest mIoU first mIoU 25.0%" in text.replace("image 0 ", "")
    assert "followed by its predicted mask" in text and "Bright patches" not in text
    assert "Where the model looks" in text_of(render()) and "Where the model looks" not in text
    assert 'class="images plain"' in render(images=[plain], views=[])
    assert 'class="images plain"' not in render(images=[noted], views=[])


def test_a_digest_is_shortened_and_numbers_are_grouped():
    text = text_of(render(card={"sha256": "0123456789abcdef" * 4, "shape": [1_234, 3], "none": None}))
    assert "0123456789abcdef…" in text and "0123456789abcdef0" not in text
    assert "1,234, 3" in text and "none –" in text


def test_headline_figures_describe_the_model():
    model = types.SimpleNamespace(input_shape=(None, 16, 24, 3), count_params=lambda: 1_234)
    tiles = [("2", "classes"), ("1,234", "parameters"), ("16 × 24", "pixels per image")]
    assert report._tiles(None, "", model, ("cat", "dog")) == tiles
    model.input_shape = (None, None, None, 3)
    assert report._tiles(None, "", model, ())[-1] == ("any × any", "pixels per image")
    (no_layers,), (no_attention,) = report._notes(None, False, True), report._notes(model, False, True)
    assert "exported model" in no_layers and "no attention" in no_attention
    assert "no head" in report._notes(model, True, False)[0] and report._notes(model, True, True) == []
    measured = {"accuracy": 0.9, "accuracy_low": 0.85, "accuracy_high": 0.95, "largest_class": 0.5, "examples": 1_000}
    result = evaluators.EVALUATORS["classification"]().describe(evaluators.Result(measured))
    assert report._tiles(result, "test", None, ()) == [
        ("90.00%", "accuracy, test, 95% confidence interval 85.00% to 95.00%"),
        ("50.00%", "largest class"),
        ("1,000", "images evaluated"),
    ]


def test_page_contains_no_absolute_paths():
    card = {
        "source": "folder:/home/me/My images",
        "recipe": {"weights": "/data/ViT-B_16.npz", "evaluators": ["knn(source='folder:/a/b c/d')", "ViT-B/16"]},
        "address": "https://arxiv.org/abs/2010.11929",
        "options": "tfds:pets#data_dir='/data/x'&download=True",
    }
    text = text_of(render(card=card))
    for expected in ("folder:My images", "ViT-B_16.npz", "folder:d", "ViT-B/16", "arxiv.org/abs/2010", "data_dir='x'"):
        assert expected in text
    for part in ("/home", "/data", "/a/b"):
        assert part not in text


def test_each_map_is_scaled_separately():
    maps = data_of(render())["images"][0]["maps"]["layers"]
    values = np.frombuffer(base64.b64decode(maps["values"]), np.uint8).reshape(3, 3, *maps["grid"])
    expected = image().maps["layers"] * 255
    np.testing.assert_array_equal(values, expected)
    faint = image(maps={"layers": image().maps["layers"] * 1e-6, "rollout": np.full((1, 1, 2, 3), np.nan)})
    maps = data_of(render(images=[faint]))["images"][0]["maps"]
    assert maps["layers"]["values"] == base64.b64encode(values.tobytes()).decode()
    assert set(base64.b64decode(maps["rollout"]["values"])) == {0}


def test_names_are_escaped():
    hostile = image(name=HOSTILE, predictions=[(HOSTILE, 1.0)], truth=HOSTILE, correct=False)
    html = render(
        title=HOSTILE,
        subtitle=HOSTILE,
        tiles=[(HOSTILE, HOSTILE)],
        notes=[HOSTILE],
        images=[hostile],
        classes=dataclasses.replace(CLASSES, names=(HOSTILE, HOSTILE, HOSTILE)),
        card={HOSTILE: HOSTILE, "x": {"y": HOSTILE}},
    )
    assert "<script>throw" not in html
    assert "<img src=x" not in html
    assert data_of(html)["images"][0]["name"] == HOSTILE


def test_page_without_images_has_no_canvas():
    html = render_page(Page("A model"))
    assert "<canvas" not in html
    assert "Model card" not in html


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    if browser.find() is None:
        pytest.skip("no browser: install Debian's chromium to check the page in one")
    directory = tmp_path_factory.mktemp("browser")
    names = image(name=HOSTILE, predictions=[(HOSTILE, 1.0), ("x" * 200, 0.0)], truth="y " * 99, correct=False)
    images = [image(0), image(1, (300, 200)), image(2, (8, 8)), names]
    classes = dataclasses.replace(CLASSES, names=(HOSTILE, "x" * 200, "y " * 99))
    (directory / "report.html").write_text(render(images=images, title=HOSTILE, classes=classes), encoding="utf-8")
    with browser.Browser(directory / "profile") as found:
        found.open((directory / "report.html").as_uri(), "document.documentElement.dataset.drawn === '4'")
        # With full opacity a pixel of the overlay is a pixel of the map.
        opaque = "document.getElementById('opacity').value = 100"
        found.evaluate(f"{opaque}; document.getElementById('opacity').dispatchEvent(new Event('input'))")
        yield found


# Brightest patch of the first image, row by row: each map of `image` lights one.
BRIGHTEST = """(() => {
  const canvas = document.getElementById("overlay-0");
  const context = canvas.getContext("2d");
  const light = [0, 1, 2, 3, 4, 5].map((patch) => {
    const x = ((patch % 3) + 0.5) / 3 * canvas.width, y = (Math.floor(patch / 3) + 0.5) / 2 * canvas.height;
    const [red, green, blue] = context.getImageData(Math.floor(x), Math.floor(y), 1, 1).data;
    return red + green + blue;
  });
  return light.indexOf(Math.max(...light));
})()"""
LAYER = "document.getElementById('layer-name').textContent"


@pytest.mark.slow
class TestInABrowser:
    def test_browser_reports_no_errors_and_no_requests(self, opened):
        assert opened.problems == []
        assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
        assert opened.evaluate("document.querySelector('h1').textContent") == HOSTILE

    def test_every_figure_and_image_is_drawn(self, opened):
        assert opened.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
        assert opened.evaluate("document.querySelectorAll('canvas[role=img]').length") == 4
        colors = "new Set(document.getElementById('overlay-1').getContext('2d').getImageData(0, 0, 200, 300).data).size"
        assert opened.evaluate(colors) > 50
        assert len(opened.screenshot()) > 20_000

    def test_the_slider_selects_the_layer(self, opened):
        opened.evaluate("document.getElementById('layer').focus()")
        assert opened.evaluate(LAYER) == "third"
        for expected, patch in (("second", 1), ("first", 0), ("first", 0)):
            opened.press("ArrowLeft", 37)
            assert opened.evaluate(LAYER) == expected
            assert opened.evaluate(BRIGHTEST) == patch
        opened.press("End", 35)
        assert (opened.evaluate(LAYER), opened.evaluate(BRIGHTEST)) == ("third", 2)

    def test_head_selector_changes_the_map(self, opened):
        opened.evaluate("document.getElementById('head').focus()")
        opened.press("ArrowDown", 40)
        assert opened.evaluate("document.getElementById('head').selectedOptions[0].text") == "head 1"
        assert opened.evaluate(BRIGHTEST) == 5
        opened.press("ArrowUp", 38)
        assert opened.evaluate(BRIGHTEST) == 2

    def test_smoothing_can_be_disabled(self, opened):
        corner = "document.getElementById('overlay-2').getContext('2d').getImageData(250, 2, 1, 1).data[0]"
        smooth = opened.evaluate(corner)
        opened.click("#smooth")
        assert opened.evaluate("document.getElementById('smooth').checked") is False
        assert opened.evaluate(corner) >= smooth
        assert opened.evaluate(BRIGHTEST) == 2
        opened.click("#smooth")

    def test_rollout_and_relevance_views_are_selectable(self, opened):
        opened.evaluate("document.getElementById('view').focus()")
        opened.press("ArrowDown", 40)
        assert opened.evaluate(LAYER) == "all"
        assert opened.evaluate("document.getElementById('layer').disabled")
        assert opened.evaluate("document.getElementById('head').disabled")
        opened.press("ArrowUp", 38)
        assert opened.evaluate(LAYER) == "third"
        assert opened.problems == []

    def test_a_question_mark_opens_the_help(self, opened):
        shown = "document.querySelector('.help p').checkVisibility()"
        assert opened.evaluate(shown) is False
        opened.click(".help summary")
        assert opened.evaluate(shown) is True
        opened.click(".help summary")

    @pytest.mark.parametrize("width", [1240, 390])
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_page_fits_every_color_scheme_and_width(self, opened, scheme, width):
        opened.look(scheme, width)
        assert opened.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        outside = """[...document.querySelectorAll("main *:not(.scroll *)")].filter((element) =>
            element.getBoundingClientRect().right > document.documentElement.clientWidth + 1).length"""
        assert opened.evaluate(outside) == 0
        lights = opened.evaluate("""["color", "backgroundColor"].map((name) =>
            getComputedStyle(document.body)[name].match(/[0-9]+/g).slice(0, 3).map(Number).reduce((a, b) => a + b))""")
        assert (lights[0] < lights[1]) == (scheme == "light")
        assert abs(lights[0] - lights[1]) > 3 * 128
        assert opened.problems == []

    @pytest.mark.parametrize("width", [1240, 390])
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    @pytest.mark.parametrize("selector", ["h1", ".tiles", ".confusion", ".drawings img"])
    def test_screenshots_are_light_or_dark_and_readable(self, opened, selector, scheme, width):
        """A figure is an image of its own: its ground and its lines have to follow the scheme, too."""
        opened.look(scheme, width)
        pixels = np.asarray(pil_image.open(io.BytesIO(opened.screenshot(selector))).convert("L"), np.float32)
        assert min(pixels.shape) > 15
        ground = np.median(pixels)
        assert ground > 225 if scheme == "light" else ground < 50
        assert np.abs(pixels - ground).max() > 130  # letters and lines
        assert opened.problems == []

    def test_images_without_maps_have_no_controls(self, opened, tmp_path):
        plain = image(maps={}, predictions=[])
        (tmp_path / "plain.html").write_text(render(images=[plain], views=[]), encoding="utf-8")
        opened.open((tmp_path / "plain.html").as_uri(), "true")
        assert opened.evaluate("document.querySelectorAll('.controls, canvas').length") == 0
        assert opened.evaluate("document.images[0].naturalWidth") == 60
        assert opened.problems == []

    def test_broken_page_is_detected(self, opened, tmp_path):
        (tmp_path / "broken.html").write_text("<script>missing()</script><img src='http://images.example/1.png'>")
        opened.open((tmp_path / "broken.html").as_uri(), "true")
        assert "missing is not defined" in str(opened.problems)
        assert "http://images.example/1.png" in opened.requests

    def test_numbers_stay_on_one_line_on_a_phone(self, opened, tmp_path):
        tiles = [("97.8%", "accuracy"), ("1,844,440,064", "parameters"), ("21,556,227", "parameters")]
        (tmp_path / "tiles.html").write_text(render(tiles=tiles), encoding="utf-8")
        opened.look("light", 390)
        opened.open((tmp_path / "tiles.html").as_uri(), "true")
        heights = "[...document.querySelectorAll('.tiles dd')].map((number) => number.getBoundingClientRect().height)"
        assert len(set(opened.evaluate(heights))) == 1
        assert opened.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
