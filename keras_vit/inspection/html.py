"""HTML elements shared by the sections of the page."""

import base64
import html as standard_html
import importlib.resources
import json
import re
from collections.abc import Sequence
from typing import Any

_POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
)
# matplotlib writes the colors into each element. These rules replace the colors for readers who prefer dark pages.
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
  [style*="stroke: #009e73"] { stroke: #2fc39a !important; }
  [style*="fill: #009e73"] { fill: #2fc39a !important; }
}
</style>"""


def escape(text: object) -> str:
    """Escape a text for HTML."""
    return standard_html.escape(str(text))


def document(
    title: str,
    subtitle: str,
    tiles: Sequence[tuple[str, str]],
    body: str,
    footer: str,
    scripts: str = "",
    css: str = "",
    policy: str = _POLICY,
) -> str:
    """Return a self-contained HTML page in this package's style.

    `body`, `scripts` and `policy` are HTML. `tiles` are main values with their captions, the most important first.
    `css` extends the style.
    """
    parts = {
        "title": escape(title),
        "subtitle": escape(subtitle),
        "tiles": _tiles(tiles),
        "body": body,
        "footer": escape(footer),
        "css": asset("page.css") + css,
        "policy": policy,
        "scripts": scripts,
    }
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], asset("page.html"))
    return page.encode(errors="backslashreplace").decode()  # file names may contain bytes that are not UTF-8


def drawing(svg: bytes, title: str) -> str:
    """Return an `<img>` of a matplotlib SVG that fits light and dark pages; `title` is its alternative text."""
    themed = re.sub(rb"(<svg[^>]*>)", lambda match: match[1] + _DARK.encode(), svg, count=1)
    return f'<img alt="{escape(title)}" src="{data_url(themed, "image/svg+xml")}">'


def card(title: str, help_text: str, content: str, kind: str = "") -> str:
    """Return a section with a heading, HTML content, and a help text behind a "?" button. `kind` is its `class`."""
    help_html = (
        f'<details class="help"><summary title="What is this?" aria-label="What is this?">?</summary>'
        f"<p>{escape(help_text)}</p></details>"
        if help_text
        else ""
    )
    return f'<section class="{kind}"><header><h2>{escape(title)}</h2>{help_html}</header>\n{content}</section>\n'


def _tiles(tiles: Sequence[tuple[str, str]]) -> str:
    items = "".join(f"<div><dd>{escape(value)}</dd><dt>{escape(caption)}</dt></div>" for value, caption in tiles)
    return f'<dl class="tiles">{items}</dl>' if items else ""


def asset(name: str, package: str = __package__) -> str:
    """Return the text of a file in the `assets/` folder of a package."""
    return importlib.resources.files(package).joinpath("assets", name).read_text(encoding="utf-8")


def data_url(content: bytes, kind: str) -> str:
    """Return the content of a file as a `data:` URL."""
    return f"data:{kind};base64,{to_base64(content)}"


def to_base64(content: bytes) -> str:
    """Encode bytes as base64."""
    return base64.b64encode(content).decode("ascii")


def script_json(value: Any) -> str:
    """Return JSON that is safe inside of a `<script>` element."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")
