"""Headings of the FAQ that quote a message are the first words of a message in the source."""

import pathlib
import re

import pytest

from tests.docs import pages
from tests.docs.command_lines import strings

FAQ = pages.ROOT / "docs" / "faq.md"
FOLDERS = ("keras_vit", "train", "export")


def quoted(text: str) -> list[str]:
    """Return the messages in the headings of a page: all code of each heading that begins with code."""
    headings = re.findall(r"^### (`.*)$", text, re.MULTILINE)
    return [code for heading in headings for code in re.findall(r"`([^`]+)`", heading)]


def begins(message: str, words: str) -> bool:
    """Return whether a message begins with these words, where `...` stands for a value."""
    value = r"[\s:]*(?:VALUE|%[\d.]*\w|\{\w+\})[\s.:]*"
    return re.match(value.join(re.escape(part.strip(" :")) for part in words.split("...")), message) is not None


def sources() -> list[pathlib.Path]:
    return [path for folder in FOLDERS for path in sorted((pages.ROOT / folder).rglob("*.py"))]


@pytest.mark.slow
def test_quoted_messages_exist():
    messages = [text for path in sources() for text in strings(path.read_text(encoding="utf-8"))]
    missing = [
        words
        for words in quoted(FAQ.read_text(encoding="utf-8"))
        if not any(begins(message, words) for message in messages)
    ]
    assert not missing, "\n".join(missing)


def test_messages_are_found_in_headings():
    assert len(quoted(FAQ.read_text(encoding="utf-8"))) > 20
    assert quoted("### `A ...` and `b c`\n### With `code`\n") == ["A ...", "b c"]


@pytest.mark.parametrize(
    ("source", "words", "expected"),
    [
        ("f'There is no file {path!r}.'", "There is no file ...", True),
        ("f'{path} is ' 'damaged: fetch it again.'", "... is damaged", True),
        ("'Training takes about %.1f of memory'", "Training takes about ... of memory", True),
        ("f'{path} is damaged.'", "is damaged", False),
        ("f'{path} is damaged.'", "... is empty", False),
    ],
)
def test_placeholders_match_formatted_values(source, words, expected):
    (message,) = strings(source)
    assert begins(message, words) == expected
