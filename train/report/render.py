"""Rendering of the page as HTML."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from keras_vit.inspection import html
from keras_vit.util import formatting

from . import _classes, _images
from ._classes import Classes
from ._images import Gallery, ImageCard, View


@dataclasses.dataclass(frozen=True)
class Figure:
    """A card with SVG drawings side by side."""

    title: str
    help: str
    drawings: Sequence[bytes]


@dataclasses.dataclass(frozen=True)
class Page:
    """Content of the page."""

    title: str
    subtitle: str = ""
    tiles: Sequence[tuple[str, str]] = ()  # main values with their captions
    notes: Sequence[str] = ()  # reasons why parts of the page are missing
    images: Sequence[ImageCard] = ()
    views: Sequence[View] = ()  # the page opens with the first view
    num_mistakes: int | None = None  # among all evaluated images, not only `images`
    classes: Classes | None = None
    figures: Sequence[Figure] = ()
    card: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    footer: str = ""
    galleries: Sequence[Gallery] = ()


def render(page: Page) -> str:
    """Return the page as HTML. All texts are escaped."""
    body = [
        "".join(f'<section class="note"><p>{html.escape(note)}</p></section>' for note in page.notes),
        _images.section(page.images, page.views, page.num_mistakes),
        *map(_images.gallery, page.galleries),
        _figures(_classes.sections(page.classes), page.figures),
        _card(formatting.without_folders(dict(page.card))),
    ]
    data = html.script_json(_images.data(page.images, page.views))
    script = html.asset("report.js", __package__)
    scripts = f'<script type="application/json" id="viewer-data">{data}</script>\n<script>\n{script}\n</script>'
    return html.document(page.title, page.subtitle, page.tiles, "\n".join(body), page.footer, scripts)


def _figures(classes: str, figures: Sequence[Figure]) -> str:
    sections = classes + "".join(_figure(figure) for figure in figures)
    return f'<div class="figures">\n{sections}</div>' if sections else ""


def _figure(figure: Figure) -> str:
    drawings = "".join(html.drawing(drawing, figure.title) for drawing in figure.drawings)
    kind = "wide" if len(figure.drawings) > 1 else ""
    return html.card(figure.title, figure.help, f'<div class="drawings">{drawings}</div>', kind)


def _card(card: Mapping[str, Any]) -> str:
    if not card:
        return ""
    rows, folds = [], []
    for name, value in card.items():
        if isinstance(value, Mapping):
            text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
            folds.append(f"<details><summary>{html.escape(name)}</summary><pre>{html.escape(text)}</pre></details>")
            continue
        text = (
            ", ".join(map(formatting.number, value)) if isinstance(value, (list, tuple)) else formatting.number(value)
        )
        if re.fullmatch("[0-9a-f]{64}", text):
            cell = f'<code title="{text}">{text[:16]}…</code>'
        else:
            cell = html.escape(text)
        rows.append(f'<tr><th scope="row">{html.escape(name)}</th><td>{cell}</td></tr>')
    return html.card("Model card", "", f'<table class="facts">{"".join(rows)}</table>{"".join(folds)}')
