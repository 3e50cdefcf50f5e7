"""Small pieces of HTML that several parts of the page use."""

import base64
import html
import importlib.resources
import json
import re
from typing import Any

_FOLDERS = re.compile(r"""(^|[:'"=\s(])/(?![/\s])(?:[^/'"]+/)*""")


def escape(text: object) -> str:
    """Return a text that HTML shows as it is."""
    return html.escape(str(text))


def card(title: str, help_text: str, content: str, kind: str = "") -> str:
    """Return a section with a heading and one sentence of help behind a question mark.

    Args:
        title: Heading.
        help_text: The sentence; empty for none.
        content: HTML of the section.
        kind: Value of the attribute `class`.
    """
    help_html = (
        f'<details class="help"><summary title="What is this?" aria-label="What is this?">?</summary>'
        f"<p>{escape(help_text)}</p></details>"
        if help_text
        else ""
    )
    return f'<section class="{kind}"><header><h2>{escape(title)}</h2>{help_html}</header>\n{content}</section>\n'


def asset(name: str) -> str:
    """Return the text of a file in `assets/`."""
    return importlib.resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def data_url(content: bytes, kind: str) -> str:
    """Return a file as the address of itself."""
    return f"data:{kind};base64,{to_base64(content)}"


def to_base64(content: bytes) -> str:
    """Return bytes as ASCII text."""
    return base64.b64encode(content).decode("ascii")


def script_json(value: Any) -> str:
    """Return JSON that cannot end the script element that holds it."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def without_folders(value: Any) -> Any:
    """Return a value with absolute paths cut to their last part: the page may be passed on to others."""
    if isinstance(value, dict):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_folders(item) for item in value]
    return _FOLDERS.sub(r"\1", value.rstrip("/")) if isinstance(value, str) and "/" in value else value


def number(value: object) -> str:
    """Return a number as people read it: 101,514 or 0.0312."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
