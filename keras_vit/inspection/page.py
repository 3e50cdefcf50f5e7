"""The report as one HTML file that needs no network: pictures, figures, script and style are inside."""

import base64
import html
import importlib.resources
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_vit.inspection import plots

_LARGEST_PICTURE = 1024  # pixels on a side that the page keeps of a picture


class Figure(NamedTuple):
    """A figure of the page.

    Attributes:
        title: Above it.
        caption: What it shows, and how to read it.
        svg: The drawing.
        wide: Whether it takes the page's whole width.
    """

    title: str
    caption: str
    svg: bytes
    wide: bool = False


class View(NamedTuple):
    """A way of telling what a model looks at.

    Attributes:
        key: Under which pictures hold its maps.
        title: Shown to choose it.
        frames: What the slider goes through, such as the names of layers.
        heads: Number of heads, whose maps follow their mean; 0 where there is one map a frame.
    """

    key: str
    title: str
    frames: tuple[str, ...]
    heads: int = 0


class Picture(NamedTuple):
    """A picture of the page.

    Attributes:
        name: Shown below it.
        pixels: uint8 `[H, W, C]`.
        box: (top, left, bottom, right) of what the model saw, in pixels.
        predictions: Labels with their probabilities, best first.
        maps: By view, `[frames, 1 + heads, h, w]`; each map is scaled to its largest value.
        truth: The true label, or None where it is not known.
    """

    name: str
    pixels: np.ndarray
    box: tuple[float, float, float, float]
    predictions: Sequence[tuple[str, float]]
    maps: Mapping[str, np.ndarray]
    truth: str | None = None


def render(
    title: str,
    facts: Sequence[str] = (),
    notes: Sequence[str] = (),
    pictures: Sequence[Picture] = (),
    views: Sequence[View] = (),
    figures: Sequence[Figure] = (),
    card: Mapping[str, Any] | None = None,
) -> str:
    """Returns the page.

    Args:
        title: Its heading.
        facts: Short statements below it.
        notes: What the reader should know first.
        pictures: With predictions and maps.
        views: What the maps are.
        figures: In their order.
        card: The model card: names to values; what is nested goes into a fold.

    Returns:
        HTML.
    """
    parts = {
        "title": html.escape(title),
        "facts": html.escape(" · ".join(facts)),
        "notes": "".join(f'<section class="note"><p>{html.escape(note)}</p></section>' for note in notes),
        "viewer": _viewer(pictures, views),
        "figures": _figures(figures),
        "card": _card(card or {}),
        "data": _json({"colors": _colors(views), "views": [v._asdict() for v in views], "pictures": _data(pictures)}),
        "css": _asset("report.css"),
        "script": _asset("report.js"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("report.html"))


def _asset(name: str) -> str:
    return importlib.resources.files("keras_vit.inspection").joinpath("assets", name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """Returns JSON that cannot end the script element that holds it."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def _colors(views: Sequence[View]) -> list[list[int]]:
    return plots.heat_colors() if views else []


def _data(pictures: Sequence[Picture]) -> list[dict]:
    result = []
    for picture in pictures:
        pixels, factor = _shrunk(picture.pixels)
        source = plots.encode_picture(pixels)
        kind = "png" if source.startswith(b"\x89PNG") else "jpeg"
        result.append(
            {
                "name": picture.name,
                "width": pixels.shape[1],
                "height": pixels.shape[0],
                "box": [round(edge / factor, 2) for edge in picture.box],
                "source": f"data:image/{kind};base64,{_base64(source)}",
                "maps": {key: _map(values) for key, values in picture.maps.items()},
            }
        )
    return result


def _shrunk(pixels: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns a picture, large ones as the means of squares of pixels, and the side of the squares."""
    pixels = plots.to_rgb(pixels)
    factor = -(-max(pixels.shape[:2]) // _LARGEST_PICTURE)
    if factor == 1:
        return pixels, 1
    height, width = (max(size // factor, 1) for size in pixels.shape[:2])
    cut = pixels[: height * factor, : width * factor].reshape(height, -1, width, pixels.shape[1] // width, 3)
    return np.round(cut[:, :factor, :, :factor].mean(axis=(1, 3))).astype(np.uint8), factor


def _map(values: np.ndarray) -> dict:
    """Returns maps as bytes, each scaled to its largest value."""
    values = np.maximum(np.nan_to_num(np.asarray(values, np.float32)), 0.0)
    largest = values.max(axis=(-2, -1), keepdims=True)
    scaled = np.round(255 * values / np.maximum(largest, 1e-30)).astype(np.uint8)
    return {"grid": list(values.shape[-2:]), "values": _base64(scaled.tobytes())}


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _viewer(pictures: Sequence[Picture], views: Sequence[View]) -> str:
    if not pictures:
        return ""
    return f"""<section>
<h2>{"What it sees, and where it looks" if views else "What it sees"}</h2>
<p>{_explanation(views)}</p>
<div class="controls"{"" if views else " hidden"}>
<label>Show <select id="view"></select></label>
<label class="wide"><span>Layer <output id="layer-name" for="layer"></output></span>
<input type="range" id="layer" min="1" max="1" step="1" value="1"></label>
<label>Head <select id="head"></select></label>
<label>Opacity <input type="range" id="opacity" min="0" max="100" value="60"></label>
<label class="check"><input type="checkbox" id="smooth" checked> smooth</label>
<span class="scale">none <canvas id="scale" width="256" height="1"></canvas> most</span>
</div>
<div class="pictures">
{"".join(_figure_of_picture(index, picture) for index, picture in enumerate(pictures))}
</div>
</section>"""


_EXPLANATIONS = {
    "layers": "Attention by layer: what the token that is read attends to (mean of the patches where none is).",
    "rollout": "Rollout: what it is made of when attention is followed from the first layer to the chosen one.",
    "relevance": "Relevance: what speaks for the likeliest class.",
    "occlusion": "Occlusion: what the likeliest class loses most by when it is covered.",
}


def _explanation(views: Sequence[View]) -> str:
    if not views:
        return "Pictures with the likeliest classes."
    sentences = [_EXPLANATIONS[view.key] for view in views if view.key in _EXPLANATIONS]
    first = "Bright patches count most; each picture's strongest is drawn brightest."
    last = "Dark borders were cut away before the model saw the picture."
    return html.escape(" ".join([first, *sentences, last]))


def _figure_of_picture(index: int, picture: Picture) -> str:
    truth = ""
    if picture.truth is not None:
        right = bool(picture.predictions) and picture.predictions[0][0] == picture.truth
        words = f"✓ {picture.truth}" if right else f"✗ is {picture.truth}"
        truth = f' <span class="truth{"" if right else " wrong"}">{html.escape(words)}</span>'
    rows = "".join(
        f'<li><span class="label" title="{html.escape(label)}">{html.escape(label)}</span>'
        f'<span class="bar"><span style="width:{min(max(share, 0.0), 1.0):.1%}"></span></span>'
        f'<span class="share">{share:.1%}</span></li>'
        for label, share in picture.predictions
    )
    return (
        f'<figure class="picture"><canvas id="picture-{index}" role="img" aria-label="{html.escape(picture.name)}">'
        f'</canvas><figcaption><span class="name">{html.escape(picture.name)}</span>{truth}'
        f'<ul class="predictions">{rows}</ul></figcaption></figure>\n'
    )


def _figures(figures: Sequence[Figure]) -> str:
    sections = "".join(
        f'<section class="{"wide" if figure.wide else "half"}"><h2>{html.escape(figure.title)}</h2>'
        f"<p>{html.escape(figure.caption)}</p>"
        f'<img alt="{html.escape(figure.title)}" src="data:image/svg+xml;base64,{_base64(figure.svg)}"></section>\n'
        for figure in figures
    )
    return f'<div class="figures">\n{sections}</div>' if sections else ""


def _card(card: Mapping[str, Any]) -> str:
    if not card:
        return ""
    rows, folds = [], []
    for name, value in card.items():
        if isinstance(value, Mapping):
            text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
            folds.append(f"<details><summary>{html.escape(name)}</summary><pre>{html.escape(text)}</pre></details>")
        else:
            text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            rows.append(f"<tr><th scope='row'>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>")
    return f"<section><h2>Model card</h2><table>{''.join(rows)}</table>{''.join(folds)}</section>"


def write(path: str, content: str) -> None:
    """Writes the page in one piece."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(content)
    os.replace(temporary, path)
