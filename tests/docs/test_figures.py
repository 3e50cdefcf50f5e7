"""The figures and tables of the documentation match the measurements of `docs/figures.py`."""

import importlib
import json
import re

import pytest

from tests.docs import pages

FOLDER = pages.ROOT / "docs" / "figures"


@pytest.fixture(scope="module")
def program():
    return vars(importlib.import_module("docs.figures"))


@pytest.fixture(scope="module")
def measured():
    return json.loads((FOLDER / "measured.json").read_text(encoding="utf-8"))


def test_tables_are_current(program, measured):
    tables, found = program["tables"](measured), set()
    for page in pages.PAGES:
        text = page.read_text(encoding="utf-8")
        for name, table in re.findall(r"<!-- figures: (\w+) -->\n(.*?)<!-- /figures: \1 -->", text, re.DOTALL):
            assert table.strip() == tables[name].strip(), f"{pages.name_of(page)}: {name}"
            found.add(name)
    assert found == set(tables)


def test_every_figure_is_there_and_used(program):
    text = "".join(page.read_text(encoding="utf-8") for page in pages.PAGES)
    names = {f"{name}_{scheme}.svg" for name in program["FIGURES"] for scheme in program["SCHEMES"]}
    files = {path.name for path in FOLDER.glob("*.svg")}
    assert names == {name for name in files if not name.startswith("paper_")}  # made by benchmarks.paper
    for name in files:
        assert f"figures/{name}" in text, name


@pytest.mark.slow
def test_figures_can_be_drawn(program, measured):
    pytest.importorskip("matplotlib")
    for draw, part in program["FIGURES"].values():
        for scheme in program["SCHEMES"].values():
            assert draw(measured[part], scheme).axes
