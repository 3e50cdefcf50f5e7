"""Names from other tools: what the tables name exists."""

import dataclasses
import importlib
import re

import pytest
from absl import flags

import keras_vit
from keras_vit.cli import commands
from keras_vit.recipe import Recipe
from keras_vit.recipe.model import argument_names
from keras_vit.util import foreign_names
from tests import programs


def fields_of(kind, prefix=""):
    """Return the paths of all fields of a dataclass, without those of groups."""
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(field.type):
            yield from fields_of(field.type, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def test_list_of_recipe_fields_is_complete():
    assert sorted(foreign_names.FIELDS) == sorted(fields_of(Recipe))


def test_settings_name_fields_and_flags_that_exist():
    programs.load("train.main")
    own = {field.rpartition(".")[2] for field in foreign_names.FIELDS}
    assert not own & foreign_names.SETTINGS.keys()
    fields = {*foreign_names.FIELDS, *(f"model.arguments.{name}" for name in argument_names(""))}
    for word, meaning in foreign_names.SETTINGS.items():
        assert word not in flags.FLAGS or meaning == "--epochs" or word == "steps"
        named = re.findall(r"--(\w+)", meaning)
        assert all(name in flags.FLAGS for name in named), word
        assert " " in meaning or named or meaning in fields, word


def test_commands_name_programs():
    assert {*foreign_names.COMMANDS.values()} <= {*commands.PROGRAMS, "--version"}
    assert not foreign_names.COMMANDS.keys() & commands.PROGRAMS.keys()


@pytest.mark.parametrize("name", foreign_names.NAMES)
def test_suggested_attributes_exist(name):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'. Use keras_vit.") as wrong:
        getattr(keras_vit, name)
    for path in re.findall(r"(keras[\w.]*\w)\b", str(wrong.value).partition(" Use ")[2]):
        module, _, attribute = path.rpartition(".")
        assert getattr(importlib.import_module(module), attribute)
