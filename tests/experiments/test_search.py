"""The settings of a sweep and the names of their runs."""

import pytest

from keras_vit import recipe
from train.experiments import search


def test_grid_expands_to_all_combinations():
    runs = search.expand(recipe.Recipe(), {"optim.learning_rate": [1e-3, 3e-4], "seed": range(2)})
    assert [tuple(settings.values()) for settings in runs.values()] == [(1e-3, 0), (1e-3, 1), (3e-4, 0), (3e-4, 1)]
    assert next(iter(runs)) == "optim.learning_rate=0.001,seed=0"


def test_several_grids_are_joined_without_duplicates():
    grids = [{"seed": [0, 1]}, {"seed": [1, 2]}, {"model.variant": ["BiT-R50x1"], "model.arguments.width_factor": [1]}]
    runs = search.expand(recipe.Recipe(), grids)
    assert list(runs) == ["seed=0", "seed=1", "seed=2", "model.variant=BiT-R50x1,model.arguments.width_factor=1"]
    assert runs["seed=2"] == {"seed": 2}


def test_run_names_are_unique_and_valid_directory_names():
    grid = {
        "data.pp_train": ["resize(8)|flip_lr" + "|value_range(-1, 1)" * 9, "resize(8)|flip_lr|value_range(-1, 1)"],
        "optim.name": ["adamw"],
        "optim.schedule.name": ["cosine", "linear"],
        "model.variant": ["ViT-S/16"],
    }
    names = list(search.expand(recipe.Recipe(), grid))
    assert len(set(names)) == 4
    assert all("/" not in name and len(name) < 200 for name in names)
    assert "optim.name=adamw,optim.schedule.name=cosine" in names[2]
    long = search.expand(recipe.Recipe(), {"data.source": ["a" * 200 + "b", "a" * 200 + "c"]})
    assert len(long) == 2 and all(name.startswith("data.source=aaa") and len(name) == 157 for name in long)


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
def test_wrong_grids_are_refused(grid, named):
    with pytest.raises(ValueError, match=named):
        search.expand(recipe.Recipe(), grid)


def test_grids_are_parsed_from_the_command_line():
    texts = [
        "optim.learning_rate=1e-3, 3e-4",
        "data.pp_train=resize(8, method='bilinear')|value_range(-1, 1),resize(8)",
        "optim.schedule.boundaries=(1, 2),(3,)",
        "model.weights=None,'a,b.npz',\"c,d.npz\"",
        "task=segmentation(blocks=(2, 5)),segmentation(blocks=(2, 5), classes=3)",
        "evaluators=[],['knn', 'fewshot']",
    ]
    assert search.parse_grid(texts, recipe.Recipe()) == {
        "optim.learning_rate": [1e-3, 3e-4],
        "data.pp_train": ["resize(8, method='bilinear')|value_range(-1, 1)", "resize(8)"],
        "optim.schedule.boundaries": [(1, 2), (3,)],
        "model.weights": [None, "a,b.npz", "c,d.npz"],
        "task": ["segmentation(blocks=(2, 5))", "segmentation(classes=3, blocks=(2, 5))"],
        "evaluators": [(), ("knn", "fewshot")],
    }


def test_tasks_are_swept_as_text():
    base = recipe.Recipe(model=recipe.Model(image_size=32, arguments={"patch_size": 4}))
    runs = search.expand(base, search.parse_grid(["task=classification,mae(mask_ratio=0.5)"], base))
    assert list(runs.values()) == [{"task": "classification"}, {"task": "mae(mask_ratio=0.5)"}]


@pytest.mark.parametrize("texts", [["seed"], ["seed="], ["seed=1", "seed=2"], ["sead=1"]])
def test_wrong_grid_flags_are_refused(texts):
    with pytest.raises(ValueError, match="seed"):
        search.parse_grid(texts, recipe.Recipe())
