"""Every link within the documentation leads to a file, and every anchor to a heading."""

import re

import pytest

from tests.docs import pages


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name_of)
def test_links_resolve(page):
    text = page.read_text(encoding="utf-8")
    for link in pages.links(text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{pages.name_of(page)} links to {link}"
        if anchor and target.suffix == ".md":
            assert anchor in pages.anchors(target.read_text(encoding="utf-8")), f"{pages.name_of(page)}: {link}"


def test_every_page_is_reachable():
    reached, waiting = set(), [pages.ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        for link in pages.links(page.read_text(encoding="utf-8")):
            waiting.append((page.parent / link.partition("#")[0]).resolve() if link[0] != "#" else page)
    missing = [pages.name_of(page) for page in pages.PAGES if page not in reached]
    assert not missing, missing


def test_every_page_is_in_the_navigation():
    text = (pages.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- (?:\w+: )?(\S+\.md)$", text, re.MULTILINE)
    docs = [page for page in pages.PAGES if page.is_relative_to(pages.ROOT / "docs")]
    missing = [page for page in docs if page.relative_to(pages.ROOT / "docs").as_posix() not in listed]
    assert not missing and len(listed) == len(set(listed))


def test_anchors_follow_from_headings():
    assert pages.anchors("# A `b`: [c](d.md), e\n```\n# not one\n```\n## F g\n") == {"a-b-c-e", "f-g"}
