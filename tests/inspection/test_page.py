"""The page: what is in it, and that it works in a browser."""

import base64
import json
import re

import numpy as np
import pytest

from keras_vit.inspection import page, plots
from tests.inspection import browser

pytest.importorskip("matplotlib", reason="the page needs matplotlib")
HOSTILE = "</script><script>throw 'x'</script><img src=x onerror=alert(1)> & \"'\u2028"


def picture(index=0, size=(40, 60), box=None, truth="cat"):
    rng = np.random.default_rng(index)
    layers = np.zeros((3, 3, 2, 3), "float32")  # 3 layers; mean and 2 heads; 2 x 3 patches
    for layer in range(3):
        for head in range(3):
            layers[layer, head].flat[(layer + 3 * (head > 0)) % 6] = 1.0  # each layer lights a patch of its own
    return page.Picture(
        f"picture {index}",
        rng.integers(0, 256, (*size, 3)).astype("uint8"),
        box or (0.0, 0.0, *map(float, size)),
        [("cat", 0.75), ("dog", 0.25)],
        {"layers": layers, "rollout": np.ones((1, 1, 2, 3), "float32")},
        truth,
    )


VIEWS = [
    page.View("layers", "Attention by layer", ("first", "second", "third"), 2),
    page.View("rollout", "Attention rollout", ("all",)),
]


def render(**changes):
    figure = page.Figure("Distance", "How far.", plots.svg(plots.attention_distance(np.ones((2, 2)))))
    arguments = {
        "title": "A model",
        "facts": ["5 classes"],
        "notes": ["A note."],
        "pictures": [picture(0), picture(1, truth="dog"), picture(2, (8, 8), truth=None)],
        "views": VIEWS,
        "figures": [figure],
        "card": {"preprocess": "decode|resize(8)", "class names": ["cat", "dog"], "recipe": {"seed": 1}},
    }
    return page.render(**{**arguments, **changes})


def data_of(html):
    return json.loads(re.search(r'<script type="application/json" id="viewer-data">(.*?)</script>', html, re.DOTALL)[1])


def test_holds_everything_and_needs_nothing():
    html = render()
    assert "default-src 'none'" in html
    markup = re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    for address in re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"'\s>)]+)""", markup):
        assert address.startswith("data:"), address
    assert not re.search(r"https?://(?!www\.w3\.org/|matplotlib\.org|purl\.org)", html)
    for text in (
        "A model",
        "5 classes",
        "A note.",
        "How far.",
        "decode|resize(8)",
        "cat, dog",
        "✓ cat",
        "✗ is dog",
        "75.0%",
    ):
        assert text in html
    assert "{{" not in html


def test_maps_are_scaled_by_themselves():
    maps = data_of(render())["pictures"][0]["maps"]["layers"]
    values = np.frombuffer(base64.b64decode(maps["values"]), np.uint8).reshape(3, 3, *maps["grid"])
    expected = picture().maps["layers"] * 255
    np.testing.assert_array_equal(values, expected)
    faint = picture()._replace(
        maps={"layers": picture().maps["layers"] * 1e-6, "rollout": np.full((1, 1, 2, 3), np.nan)}
    )
    maps = data_of(render(pictures=[faint]))["pictures"][0]["maps"]
    assert maps["layers"]["values"] == base64.b64encode(values.tobytes()).decode()
    assert set(base64.b64decode(maps["rollout"]["values"])) == {0}


def test_large_pictures_are_shrunk_with_what_the_model_saw():
    large = picture(size=(1500, 2100), box=(0.0, 300.0, 1500.0, 1800.0))
    found = data_of(render(pictures=[large]))["pictures"][0]
    assert (found["height"], found["width"], found["box"]) == (500, 700, [0, 100, 500, 600])


def test_names_are_text():
    hostile = picture()._replace(name=HOSTILE, predictions=[(HOSTILE, 1.0)], truth=HOSTILE)
    html = render(
        title=HOSTILE,
        facts=[HOSTILE],
        notes=[HOSTILE],
        pictures=[hostile],
        card={HOSTILE: HOSTILE, "x": {"y": HOSTILE}},
    )
    assert "<script>throw" not in html
    assert "<img src=x" not in html
    assert data_of(html)["pictures"][0]["name"] == HOSTILE


def test_without_pictures():
    html = render(pictures=[], views=[], figures=[], card=None, notes=[])
    assert "<canvas" not in html
    assert "Model card" not in html


def test_write(tmp_path):
    page.write(str(tmp_path / "report.html"), render())
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    if browser.find() is None:
        pytest.skip("no browser: install Debian's chromium to check the page in one")
    directory = tmp_path_factory.mktemp("browser")
    names = picture()._replace(name=HOSTILE, predictions=[(HOSTILE, 1.0)])
    pictures = [picture(0), picture(1, (300, 200), (50.0, 0.0, 250.0, 200.0)), picture(2, (8, 8)), names]
    page.write(str(directory / "report.html"), render(pictures=pictures, title=HOSTILE))
    with browser.Browser(directory / "profile") as found:
        found.open(directory / "report.html", "document.documentElement.dataset.drawn === '4'")
        yield found


# Which patch of the first picture is brightest, row by row: the maps of `picture` light one each.
BRIGHTEST = """(() => {
  const canvas = document.getElementById("picture-0");
  const context = canvas.getContext("2d");
  const light = [0, 1, 2, 3, 4, 5].map((patch) => {
    const x = ((patch % 3) + 0.5) / 3 * canvas.width, y = (Math.floor(patch / 3) + 0.5) / 2 * canvas.height;
    const [red, green, blue] = context.getImageData(Math.floor(x), Math.floor(y), 1, 1).data;
    return red + green + blue;
  });
  return light.indexOf(Math.max(...light));
})()"""
LAYER = "document.getElementById('layer-name').textContent"


class TestInABrowser:
    def test_no_errors_and_no_requests(self, opened):
        assert opened.problems == []
        assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
        assert opened.evaluate("document.querySelector('h1').textContent") == HOSTILE

    def test_every_figure_and_picture_is_drawn(self, opened):
        assert opened.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
        assert opened.evaluate("document.querySelectorAll('canvas[role=img]').length") == 4
        colors = "new Set(document.getElementById('picture-1').getContext('2d').getImageData(0, 0, 200, 300).data).size"
        assert opened.evaluate(colors) > 50
        assert len(opened.screenshot()) > 20_000

    def test_the_slider_goes_through_the_layers(self, opened):
        opened.evaluate("document.getElementById('opacity').value = 100; document.getElementById('layer').focus()")
        assert opened.evaluate(LAYER) == "third"
        for expected, patch in (("second", 1), ("first", 0), ("first", 0)):
            opened.press("ArrowLeft", 37)
            assert opened.evaluate(LAYER) == expected
            assert opened.evaluate(BRIGHTEST) == patch
        opened.press("End", 35)
        assert (opened.evaluate(LAYER), opened.evaluate(BRIGHTEST)) == ("third", 2)

    def test_heads(self, opened):
        opened.evaluate("document.getElementById('head').focus()")
        opened.press("ArrowDown", 40)
        assert opened.evaluate("document.getElementById('head').selectedOptions[0].text") == "head 1"
        assert opened.evaluate(BRIGHTEST) == 5
        opened.press("ArrowUp", 38)
        assert opened.evaluate(BRIGHTEST) == 2

    def test_patches_as_they_are(self, opened):
        corner = "document.getElementById('picture-2').getContext('2d').getImageData(250, 2, 1, 1).data[0]"
        smooth = opened.evaluate(corner)
        opened.click("#smooth")
        assert opened.evaluate("document.getElementById('smooth').checked") is False
        assert opened.evaluate(corner) >= smooth
        assert opened.evaluate(BRIGHTEST) == 2
        opened.click("#smooth")

    def test_what_the_model_did_not_see_is_dark(self, opened):
        top = "document.getElementById('picture-1').getContext('2d').getImageData(100, {}, 1, 1).data"
        assert list(opened.evaluate(f"[...{top.format(10)}]"))[:3] == [0, 0, 0]

    def test_other_views(self, opened):
        opened.evaluate("document.getElementById('view').focus()")
        opened.press("ArrowDown", 40)
        assert opened.evaluate(LAYER) == "all"
        assert opened.evaluate("document.getElementById('layer').disabled")
        assert opened.evaluate("document.getElementById('head').disabled")
        opened.press("ArrowUp", 38)
        assert opened.evaluate(LAYER) == "third"
        assert opened.problems == []

    def test_pictures_without_maps(self, opened, tmp_path):
        plain = picture()._replace(maps={}, predictions=[])
        page.write(str(tmp_path / "plain.html"), render(pictures=[plain], views=[]))
        opened.open(tmp_path / "plain.html", "document.documentElement.dataset.drawn === '1'")
        assert opened.evaluate("document.querySelector('.controls').offsetHeight") == 0
        assert opened.problems == []

    def test_a_broken_page_would_be_noticed(self, opened, tmp_path):
        (tmp_path / "broken.html").write_text("<script>missing()</script><img src='http://pictures.example/1.png'>")
        opened.open(tmp_path / "broken.html", "true")
        assert "missing is not defined" in str(opened.problems)
        assert "http://pictures.example/1.png" in opened.requests
