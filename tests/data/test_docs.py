"""Examples in `docs/data.md` and in docstrings run as they are."""

import doctest
import pathlib
import re

import pytest

from keras_vit import _calls, data
from keras_vit.data import pipeline, preprocess, readers

DOCUMENT = pathlib.Path(__file__).parent.parent.parent / "docs" / "data.md"


def test_examples_of_the_document():
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    names = {}
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), names)


def test_every_operation_is_documented():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [name for name in preprocess.OPS if f"`{name}" not in text] == []


@pytest.mark.parametrize("module", [_calls, pipeline, preprocess, readers], ids=lambda module: module.__name__)
def test_examples_of_docstrings(module):
    results = doctest.testmod(module, extraglobs={"open_source": data.open_source})
    assert results.attempted and not results.failed
