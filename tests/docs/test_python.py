"""The Python code of the documentation runs without a warning in a separate process."""

import re

import pytest

import keras_vit
from tests import forked
from tests.docs import pages, snippets


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in pages.PAGES if snippets.python_blocks(page)], ids=pages.name_of)
def test_python_blocks_of_the_pages_run(page, tmp_path):
    exit_code, output = forked.run("tests.docs.snippets", pages.name_of(page), tmp_path)
    assert exit_code == 0, output


@pytest.mark.parametrize("page", [page for page in pages.PAGES if page.name != "CHANGELOG.md"], ids=pages.name_of)
def test_names_of_the_package_are_public(page):
    named = set(re.findall(r"\bkeras_vit\.(?!md\b)([A-Za-z]\w*)", page.read_text(encoding="utf-8")))
    unlisted = {"configs", "util"}  # modules of recipes, which only an installed package has; helpers
    assert named - unlisted <= set(keras_vit.__all__)


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name_of)
def test_reasons_for_not_running_a_block_are_known(page):
    for block in pages.blocks(page.read_text(encoding="utf-8")):
        assert block.needs is None or block.needs in pages.REASONS, f"line {block.line}: {block.needs}"


def test_python_blocks_are_found_in_markdown():
    text = "a\n<!-- docs: needs network -->\n\n```python\nx\n```\n- b\n  ```bash\n  y\n  ```\n"
    assert [(block.language, block.code, block.line, block.needs) for block in pages.blocks(text)] == [
        ("python", "x\n", 5, "network"),
        ("bash", "y\n", 9, None),
    ]


@pytest.mark.parametrize("page", [page for page in pages.PAGES if snippets.python_blocks(page)], ids=pages.name_of)
def test_steps_of_an_epoch_are_at_least_one(page):
    """`source.num_examples // 128` is 0 for a small data set, and Keras takes 0 steps of endless batches as endless."""
    for block in snippets.python_blocks(page):
        assert not re.search(r"(num_examples|len\([^)]*\)|cardinality\(\)) *// *\w+\s*($|#)", block.code, re.MULTILINE)
