"""The training program reads every field of a recipe: an unread field would have no effect."""

import dataclasses
import sys

import pytest
from absl import flags

from keras_vit import optim
from keras_vit import recipe as recipes
from keras_vit.recipe import conversion
from keras_vit.recipe import fields as recipe_fields
from keras_vit.training import run_summary, train
from keras_vit.util import foreign_names
from tests.recipe import toy

# What copies, compares or writes down whole recipes does not use their fields.
COPIES = (dataclasses.__file__, conversion.__file__, recipe_fields.__file__, "<string>")


def recorded(value, read, prefix=""):
    """A copy of a recipe that adds to `read` the path of each field that is read; "model.__dict__" for `vars`."""

    class Recorded(type(value)):
        def __getattribute__(self, name):
            code = sys._getframe(1).f_code
            if code.co_filename not in COPIES or "constructor_arguments" in code.co_qualname:
                read.add(prefix + name)
            return super().__getattribute__(name)

    copied = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    for name, part in copied.items():
        if dataclasses.is_dataclass(part) and name != "task":
            copied[name] = recorded(part, read, f"{prefix}{name}.")
    return Recorded(**copied)


def small(**optim):
    """The demo's recipe for two steps, with another optimizer or schedule."""
    recipe = toy.shrink(toy.load("digits", None))
    recipe.deterministic = False  # would stay on for the tests that follow
    recipe.optim = recipes.Optim(**optim)
    return recipe


@pytest.mark.slow
def test_every_field_is_read_in_training(monkeypatch, tmp_path):
    """Fields that only some optimizers, schedules and checkpoints need are read in a run that has them."""
    read: set = set()
    monkeypatch.setattr(run_summary, "draw_figure", lambda *_: None)
    monkeypatch.setattr(flags, "FLAGS", None)  # training is a function, which reads no flags
    begun = small(name="adamw", schedule=recipes.Schedule("rsqrt"))
    other = small(name="sgd", schedule=recipes.Schedule("steps", boundaries=(1,)))
    other.model.weights = str(tmp_path / "0" / "model.keras")
    for number, recipe in enumerate((begun, other)):
        results = train.train(recorded(recipe, read), str(tmp_path / str(number)), distribute="one_device")
        assert results["eval_accuracy"] >= 0 and (tmp_path / str(number) / "model.keras").exists()
    with pytest.raises(ValueError, match="seed"):
        train.train(dataclasses.replace(begun, seed=1), str(tmp_path / "0"), distribute="one_device")
    optim.create_schedule(recorded(recipes.Schedule("cosine"), read, "optim.schedule."), 0.1, 2)(1)
    unread = sorted(set(foreign_names.FIELDS) - read)
    assert not unread, "Nothing reads these."


def test_field_reads_are_distinguished_by_path():
    read = set()
    recipe = recorded(recipes.Recipe(), read)
    recipes.check(recipe)
    assert recipes.to_dict(recipe) and not read
    assert recipe.optim.schedule.end == 0.0
    assert read == {"optim", "optim.schedule", "optim.schedule.end"}
    with pytest.raises(AttributeError):
        recipe.model.end  # noqa: B018
    assert vars(recipe.model) and "model.__dict__" in read
