"""Examples in `docs/data.md` and of the calls that it describes run as they are."""

import doctest
import pathlib
import re

import pytest

from keras_vit.data import parse, preprocess
from keras_vit.util import literal_calls

DOCUMENT = pathlib.Path(__file__).parent.parent.parent / "docs" / "data.md"


def test_the_message_of_an_unknown_operation():
    (quoted,) = re.findall(r"```\n(Error in the .*?), \.\.\.\n```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    with pytest.raises(ValueError) as raised:
        preprocess.host_function("decode|resise(224)|flip_lr")
    assert str(raised.value).startswith(quoted)


def test_every_operation_is_documented():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [name for name in parse.OPS if f"`{name}" not in text] == []


def test_examples_of_calls():
    results = doctest.testmod(literal_calls)
    assert results.attempted and not results.failed
