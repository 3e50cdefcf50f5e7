"""The points of a sweep and their names."""

import pytest

from keras_vit import experiments, recipe


def test_all_combinations():
    points = experiments.expand(recipe.Recipe(total_steps=7), {"optim.learning_rate": [1e-3, 3e-4], "seed": range(2)})
    assert [(p.recipe.optim.learning_rate, p.recipe.seed) for p in points] == [
        (1e-3, 0),
        (1e-3, 1),
        (3e-4, 0),
        (3e-4, 1),
    ]
    assert all(point.recipe.total_steps == 7 for point in points)
    assert points[0].name == "learning_rate=0.001,seed=0"


def test_several_grids_are_joined_and_points_are_not_repeated():
    grids = [{"seed": [0, 1]}, {"seed": [1, 2]}, {"model.variant": ["BiT-R50x1"], "model.arguments.width_factor": [1]}]
    points = experiments.expand(recipe.Recipe(), grids)
    assert [point.name for point in points] == ["seed=0", "seed=1", "seed=2", "variant=BiT-R50x1,width_factor=1"]
    assert points[-1].recipe.model.arguments == {"width_factor": 1}


def test_names_differ_and_are_directories():
    grid = {
        "data.pp_train": ["resize(8)|flip_lr" + "|value_range(-1, 1)" * 3, "resize(8)|flip_lr|value_range(-1, 1)"],
        "optim.name": ["adamw"],
        "optim.schedule.name": ["cosine", "linear"],
        "model.variant": ["ViT-S/16"],
    }
    names = [point.name for point in experiments.expand(recipe.Recipe(), grid)]
    assert len(set(names)) == 4
    assert all("/" not in name and len(name) < 200 for name in names)
    assert "optim.name=adamw,optim.schedule.name=cosine" in names[0]


@pytest.mark.parametrize(
    ("grid", "named"),
    [
        ({"optim.learning_rat": [1]}, "optim.learning_rate"),
        ({"seed": []}, "seed"),
        ({"optim": [1]}, "optim.learning_rate"),
        ({"data.batch_size": [0]}, "batch_size=0 has no valid recipe"),
        ({"seed": ["first"]}, "seed must be of type int"),
    ],
)
def test_wrong_grids(grid, named):
    with pytest.raises(ValueError, match=named):
        experiments.expand(recipe.Recipe(), grid)


def test_the_command_line():
    texts = [
        "optim.learning_rate=1e-3, 3e-4",
        "data.pp_train=resize(8, method='bilinear')|value_range(-1, 1),resize(8)",
        "optim.schedule.boundaries=(1, 2),(3,)",
        "model.checkpoint=None,'a,b.npz'",
    ]
    assert experiments.parse_grid(texts, recipe.Recipe()) == {
        "optim.learning_rate": [1e-3, 3e-4],
        "data.pp_train": ["resize(8, method='bilinear')|value_range(-1, 1)", "resize(8)"],
        "optim.schedule.boundaries": [(1, 2), (3,)],
        "model.checkpoint": [None, "a,b.npz"],
    }


@pytest.mark.parametrize("texts", [["seed"], ["seed="], ["seed=1", "seed=2"], ["sead=1"]])
def test_wrong_flags(texts):
    with pytest.raises(ValueError, match="seed"):
        experiments.parse_grid(texts, recipe.Recipe())
