"""The page as HTML."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from keras_vit.inspection.page import _classes, _html, _images
from keras_vit.inspection.page.content import Figure, Page

# matplotlib writes colors into each element. These rules replace them where the reader prefers dark pages.
_DARK = """<style>
text { font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif !important; }
#patch_1 path { fill: none !important; }
[style*="fill: #ffffff"] { fill: none !important; }
@media (prefers-color-scheme: dark) {
  text, [style*="fill: #000000"] { fill: #dfe4ec !important; }
  [style*="stroke: #000000"] { stroke: #8d99ab !important; }
  [style*="stroke: #b0b0b0"] { stroke: #46505f !important; }
  [style*="stroke: #0072b2"] { stroke: #4aa8de !important; }
  [style*="fill: #0072b2"] { fill: #4aa8de !important; }
  [style*="stroke: #d55e00"] { stroke: #f08a4b !important; }
  [style*="fill: #d55e00"] { fill: #f08a4b !important; }
}
</style>"""


def render(page: Page) -> str:
    """Return the page as HTML.

    Args:
        page: Content of the page. Names may hold any characters.
    """
    parts = {
        "title": _html.escape(page.title),
        "subtitle": _html.escape(page.subtitle),
        "tiles": _tiles(page.tiles),
        "notes": "".join(f'<section class="note"><p>{_html.escape(note)}</p></section>' for note in page.notes),
        "images": _images.section(page.images, page.views, page.num_mistakes),
        "figures": _figures(_classes.sections(page.classes), page.figures),
        "card": _card(_html.without_folders(dict(page.card))),
        "footer": _html.escape(page.footer),
        "data": _html.script_json(_images.data(page.images, page.views)),
        "css": _html.asset("report.css"),
        "script": _html.asset("report.js"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _html.asset("report.html"))


def _tiles(tiles: Sequence[tuple[str, str]]) -> str:
    items = "".join(
        f"<div><dd>{_html.escape(value)}</dd><dt>{_html.escape(caption)}</dt></div>" for value, caption in tiles
    )
    return f'<dl class="tiles">{items}</dl>' if items else ""


def _figures(classes: str, figures: Sequence[Figure]) -> str:
    sections = classes + "".join(_figure(figure) for figure in figures)
    return f'<div class="figures">\n{sections}</div>' if sections else ""


def _figure(figure: Figure) -> str:
    drawings = "".join(
        f'<img alt="{_html.escape(figure.title)}" src="{_html.data_url(_themed(drawing), "image/svg+xml")}">'
        for drawing in figure.drawings
    )
    kind = "wide" if len(figure.drawings) > 1 else ""
    return _html.card(figure.title, figure.help, f'<div class="drawings">{drawings}</div>', kind)


def _themed(drawing: bytes) -> bytes:
    """Return a drawing that fits light and dark pages."""
    return re.sub(rb"(<svg[^>]*>)", lambda match: match[1] + _DARK.encode(), drawing, count=1)


def _card(card: Mapping[str, Any]) -> str:
    if not card:
        return ""
    rows, folds = [], []
    for name, value in card.items():
        if isinstance(value, Mapping):
            text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
            folds.append(f"<details><summary>{_html.escape(name)}</summary><pre>{_html.escape(text)}</pre></details>")
            continue
        text = ", ".join(map(_html.number, value)) if isinstance(value, (list, tuple)) else _html.number(value)
        if re.fullmatch("[0-9a-f]{64}", text):
            cell = f'<code title="{text}">{text[:16]}…</code>'
        else:
            cell = _html.escape(text)
        rows.append(f'<tr><th scope="row">{_html.escape(name)}</th><td>{cell}</td></tr>')
    return _html.card("Model card", "", f'<table class="facts">{"".join(rows)}</table>{"".join(folds)}')
