"""Adapt docstrings for the site. Loaded by mkdocstrings, see mkdocs.yml."""

import re
import textwrap
from typing import Any

import griffe

SECTIONS = "Args|Attributes|Returns|Yields|Raises|References|Note|Notes"
# Constructors of variants with a complete entry. All constructors of a class have the same arguments.
COMPLETE = {"VisionTransformer": "ViT_B16", "BiTResNet": "BiT_R50x1"}


class ExamplesAsCode(griffe.Extension):
    """Put the code of an `Example:` section into a fence, shorten the entries of constructors, and omit attributes."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of an object, before it is parsed."""
        if obj.is_attribute and "property" not in obj.labels:
            obj.docstring = None  # inspection finds the docstring of its type, such as `str`
        if obj.docstring:
            if re.fullmatch(r"keras_vit\.applications\.[A-Z]\w*_\w+", obj.path) and obj.name not in COMPLETE.values():
                obj.docstring.value = shortened(obj.docstring.value)
                obj.parameters = griffe.Parameters(  # type: ignore[attr-defined]
                    griffe.Parameter("arguments", kind=griffe.ParameterKind.var_keyword)
                )
            obj.docstring.value = fenced(obj.docstring.value)


def shortened(docstring: str) -> str:
    """Return the docstring of a constructor with a link in place of its arguments."""
    found = re.fullmatch(
        r"(?P<first>[^\n]+).*?(?P<weights>^Published weights:\n.*?)^Returns:\n +A `keras_vit\.(?P<model>\w+)`.*",
        docstring,
        re.DOTALL | re.MULTILINE,
    )
    if found is None:
        raise ValueError(f"Expected the docstring of a constructor. Received: {docstring!r}")
    complete = f"keras_vit.{COMPLETE[found['model']]}"
    return f"{found['first']}\n\nThe arguments are those of [`{complete}`][{complete}].\n\n{found['weights']}"


def fenced(docstring: str) -> str:
    """Return a docstring whose examples are fenced."""

    def replace(match: re.Match) -> str:
        code = textwrap.dedent(match[1].strip("\n")).rstrip()
        if "```" not in code:
            code = f"```{'pycon' if code.startswith('>>>') else 'python'}\n{code}\n```"
        return "Examples:\n" + textwrap.indent(code, "    ") + "\n\n"

    return re.sub(rf"^Examples?:\n(.*?)(?=^(?:{SECTIONS}):|\Z)", replace, docstring, flags=re.DOTALL | re.MULTILINE)
