"""Show the `Example:` sections of docstrings as code on the site. Loaded by mkdocstrings, see mkdocs.yml."""

import re
import textwrap
from typing import Any

import griffe

SECTIONS = "Args|Attributes|Returns|Yields|Raises|References|Note|Notes"


class ExamplesAsCode(griffe.Extension):
    """Put the code of an `Example:` section into a fence."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of an object, before it is parsed."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    """Return a docstring whose examples are fenced."""

    def replace(match: re.Match) -> str:
        code = textwrap.dedent(match[1].strip("\n")).rstrip()
        if "```" not in code:
            code = f"```{'pycon' if code.startswith('>>>') else 'python'}\n{code}\n```"
        return "Examples:\n" + textwrap.indent(code, "    ") + "\n\n"

    return re.sub(rf"^Examples?:\n(.*?)(?=^(?:{SECTIONS}):|\Z)", replace, docstring, flags=re.DOTALL | re.MULTILINE)
