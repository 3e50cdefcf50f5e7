"""The documentation uses the words of its glossary."""

import re

import pytest

from tests.docs import pages

GLOSSARY = pages.ROOT / "docs" / "glossary.md"


def avoided() -> dict[str, str]:
    """Return the words that the glossary advises against, each with the word to use."""
    rows = re.findall(
        r"^\| ([^|]+) \| (?:\\\||[^|])+ \| ([^|]*) \|$", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE
    )
    return {word.strip(): row[0] for row in rows[1:] for word in row[1].split(",") if word.strip()}


def test_the_glossary_is_read():
    assert avoided()["artefact"] == "artifact"


@pytest.mark.parametrize("page", [page for page in pages.PAGES if page != GLOSSARY], ids=pages.name_of)
def test_pages_use_the_words_of_the_glossary(page):
    found = []
    for number, line in enumerate(pages.prose(page.read_text(encoding="utf-8")).splitlines(), 1):
        for word, better in avoided().items():
            if re.search(rf"\b{re.escape(word)}s?\b", line, re.IGNORECASE):
                found.append(f"line {number}: {word}; the glossary says {better}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name_of)
def test_pages_contain_no_merge_conflict_markers(page):
    assert not re.search(r"^(<{7}|>{7}) ", page.read_text(encoding="utf-8"), re.MULTILINE)
