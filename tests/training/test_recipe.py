"""Recipes: strict in names, types and ranges, and the same after a round trip through JSON."""

import json

import pytest

from keras_vit import recipe as recipes


def test_round_trip_through_json():
    recipe = recipes.Recipe(
        model=recipes.Model(resnet_blocks=(2, 3), patch_size=4),
        optim=recipes.Optim(schedule=recipes.Schedule("steps", boundaries=(1, 2))),
    )
    assert recipes.from_dict(json.loads(json.dumps(recipes.to_dict(recipe)))) == recipe


def test_missing_fields_keep_their_defaults():
    recipe = recipes.from_dict({"seed": 3, "optim": {"learning_rate": 1}})
    assert recipe == recipes.Recipe(seed=3, optim=recipes.Optim(learning_rate=1.0))
    assert isinstance(recipe.optim.learning_rate, float)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"optim": {"learnin_rate": 1.0}}, "no field optim.learnin_rate. Did you mean optim.learning_rate?"),
        ({"modle": {}}, "no field modle. Did you mean model?"),
        ({"optim": {"schedule": {"warmup": 3}}}, "Did you mean optim.schedule.warmup_steps?"),
        ({"seed": "zero"}, "seed must be of type int. Received: seed='zero', of type str"),
        ({"seed": True}, "seed must be of type int"),
        ({"total_steps": 1.5}, "total_steps must be of type int"),
        ({"deterministic": 1}, "deterministic must be of type bool"),
        ({"model": 3}, "model must be a dictionary of fields. Received: 3"),
        ({"model": {"resnet_blocks": ("a",)}}, "model.resnet_blocks must be of type int"),
        ({"model": {"head": "drop"}}, "model.head must be one of 'auto', 'keep', 'reset'. Received: model.head='drop'"),
        ({"total_steps": 0}, "total_steps must be at least 1. Received: total_steps=0"),
        (
            {"data": {"batch_size": 33}, "optim": {"accumulation_steps": 4}},
            "data.batch_size must be a multiple of optim.accumulation_steps=4.*nearest that works is 32",
        ),
    ],
)
def test_what_is_wrong_is_said(values, message):
    with pytest.raises(ValueError, match=message):
        recipes.from_dict(values)


def test_fields_by_path():
    assert recipes.get(recipes.Recipe(), "optim.schedule.name") == "cosine"
    with pytest.raises(ValueError, match="no field optim.schedule.nam. Did you mean optim.schedule.name"):
        recipes.get(recipes.Recipe(), "optim.schedule.nam")
    with pytest.raises(ValueError, match="no field seed.x. It has no fields of its own"):
        recipes.get(recipes.Recipe(), "seed.x")


def test_nearest_multiple():
    assert [recipes.nearest_multiple(n, 8) for n in (1, 11, 13, 16)] == [8, 8, 16, 16]
