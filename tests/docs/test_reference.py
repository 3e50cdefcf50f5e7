"""The API reference has one entry for each public name, on the page of its package."""

import collections
import importlib
import re

import pytest

from keras_vit import evaluators
from tests.docs import pages, public_names

FOLDER = pages.ROOT / "docs" / "reference"
ENTRIES = {
    page.stem: re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    for page in sorted(FOLDER.glob("*.md"))
}
PUBLIC = [name for name in public_names.PACKAGES if name.count(".") < 2]  # the figures are on the page of inspection


def identity(path):
    """Return the path at which a public name is defined. Several packages may offer the same name."""
    package, _, name = path.rpartition(".")
    value = getattr(importlib.import_module(package), name)
    if callable(value):
        return f"{value.__module__}.{value.__qualname__}"
    return getattr(value, "__name__", path)


@pytest.mark.parametrize("page", [page for page, entries in ENTRIES.items() if entries])
def test_entries_exist_and_belong_to_the_page(page):
    package = "keras_vit" if page in ("keras_vit", "variants") else f"keras_vit.{page}"
    for path in ENTRIES[page]:
        assert path.startswith(f"{package}.") and identity(path), f"docs/reference/{page}.md: {path}"


def test_each_public_name_has_one_entry():
    found = collections.Counter(identity(path) for paths in ENTRIES.values() for path in paths)
    public = [f"{package}.{name}" for package in public_names.PACKAGES for name in public_names.names_of(package)]
    assert [path for path in public if found[identity(path)] == 0] == [], "without an entry in docs/reference"
    assert [path for path, count in found.items() if count > 1] == [], "with several entries in docs/reference"


def test_each_evaluator_has_an_entry():
    kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in evaluators.EVALUATORS.values()]
    assert [kind for kind in kinds if kind.startswith("keras_vit.") and kind not in ENTRIES["evaluators"]] == []


def test_each_public_package_has_a_page_and_a_row():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[`(keras_vit[\w.]*)`\]\((\w+)\.md\) \|", text, re.MULTILINE)
    assert sorted(rows) == [(name, name.rpartition(".")[2]) for name in sorted(PUBLIC)]
    assert [page for _, page in rows if not ENTRIES[page]] == []
