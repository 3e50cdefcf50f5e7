"""The tables of models, programs and extras are complete."""

import json
import re
import shutil

import pytest

import keras_vit
from benchmarks import models
from keras_vit.cli import commands, exit_codes
from keras_vit.runs import errors
from keras_vit.zoo.variants import constructor_name
from tests import forked, programs
from tests.docs import pages
from tests.models.test_counts import COUNTS


def read(name):
    return (pages.ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.slow
def test_table_of_models_is_current():
    """It is written by a program, from the published weights, the cost model and the newest benchmarks."""
    assert json.loads(models.SPEEDS.read_text(encoding="utf-8")) == models.speeds()
    assert f"<!-- models -->\n{models.text()}\n<!-- /models -->" in read("reference/model_table.md"), (
        "python -m benchmarks.models"
    )


@pytest.mark.slow
def test_rows_of_models_are_complete(capsys):
    found = [row for name in keras_vit.list_models() for row in models.models.rows(name)]
    assert len(found) == sum(len(keras_vit.list_weights(name)) or 1 for name in keras_vit.list_models())
    assert all(row["source"] for row in found)
    counted = {row["model"]: row["parameters"] for row in found if row["weights"] in ("augreg-224", "bit-s")}
    assert len(counted) > 10
    for name, parameters in COUNTS.items():
        assert counted.get(constructor_name(name), parameters) == parameters
    (measured,) = [row for row in found if (row["model"], row["weights"]) == ("ViT_B16", "augreg-224")]
    assert measured["images/s"] and measured["GFLOPs"] == 35.1  # 17.5 G multiply-adds, as in DeiT's paper
    assert programs.call("train.models", "ViT_S16") == 0
    text = capsys.readouterr().out
    assert "| ViT_S16 | augreg | 384 | 83.73% |" in text and "ViT_B16" not in text


def test_every_command_is_listed():
    rows = re.findall(r"^\| `keras-vit ([\w-]+)\b[^|]*\|", read("programs.md"), re.MULTILINE)
    assert rows == list(dict.fromkeys(rows)) and set(rows) == set(commands.PROGRAMS)


def test_exit_codes_are_listed_on_one_page():
    known = {code for code in vars(exit_codes).values() if type(code) is int}
    known |= {kind.exit_code for kind in vars(errors).values() if hasattr(kind, "exit_code")}
    rows = {page: re.findall(r"^\| (\d+(?:, \d+)*) \|", page.read_text("utf-8"), re.MULTILINE) for page in pages.PAGES}
    assert [pages.name_of(page) for page in pages.PAGES if "75" in rows[page]] == ["docs/programs.md"]
    assert known <= {int(code) for row in rows[pages.ROOT / "docs/programs.md"] for code in row.split(", ")}


def test_every_extra_is_listed(metadata):
    text = read("getting_started.md")
    (table,) = re.findall(r"^\| extra \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    listed = [name for row in table.splitlines() for name in re.findall(r"`([\w-]+)`", row.split("|")[1])]
    assert sorted(listed) == sorted(metadata["extras_require"])


@pytest.mark.slow
def test_generated_tables_of_fields_flags_and_limits_are_current(tmp_path):
    """A program writes them, from the dataclasses of recipes, the flags of the commands and the limits of outputs."""
    folder = pages.ROOT / "docs" / "reference"
    names = ("recipe_fields.md", "commands.md", "artifacts.md")
    for name in names:
        shutil.copy(folder / name, tmp_path)
    exit_code, output = forked.run("docs.tables", tmp_path)
    assert exit_code == 0, output
    for name in names:
        assert (tmp_path / name).read_text(encoding="utf-8") == read(f"reference/{name}"), "python -m docs.tables"
