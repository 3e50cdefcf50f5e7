"""The tables of models, programs and extras are complete."""

import re

import keras_vit
from keras_vit.program import commands
from tests.docs import pages
from tests.models.test_counts import COUNTS


def read(name):
    return (pages.ROOT / "docs" / name).read_text(encoding="utf-8")


def test_table_of_models():
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| ([\d,]+) \|", read("models.md"), re.MULTILINE)
    assert sorted(name for _, name, _ in rows) == sorted(keras_vit.list_models())
    for constructor, name, parameters in rows:
        assert callable(getattr(keras_vit, constructor)), constructor
        if name in COUNTS:
            assert int(parameters.replace(",", "")) == COUNTS[name]


def test_every_command_is_listed():
    rows = re.findall(r"^\| `keras-vit ([\w-]+)\b[^|]*\|", read("programs.md"), re.MULTILINE)
    assert rows == list(dict.fromkeys(rows)) and set(rows) == set(commands.PROGRAMS)


def test_every_extra_is_listed(metadata):
    text = read("getting_started.md")
    (table,) = re.findall(r"^\| extra \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    listed = [name for row in table.splitlines() for name in re.findall(r"`([\w-]+)`", row.split("|")[1])]
    assert sorted(listed) == sorted(metadata["extras_require"])
