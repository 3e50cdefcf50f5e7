"""The recipes have the numbers of the published configurations, which `published.toml` lists."""

import pathlib
import re
import tomllib

import pytest

from keras_vit import recipe as recipes
from keras_vit import zoo
from keras_vit.evaluators import vtab
from keras_vit.optim import create_schedule
from tests.recipe import toy
from train.configs import common

PUBLISHED = tomllib.loads((pathlib.Path(__file__).parent / "published.toml").read_text())


def extended(entry, own):
    """The fields of a group or recipe, with those of the groups that it extends."""
    fields = {}
    for name in entry.get("extends", ()):
        group = PUBLISHED["groups"][name]
        fields |= extended(group, {field: value for field, value in group.items() if field != "extends"})
    return fields | own | dict.fromkeys(entry.get("unset", ()))


EXPECTED = {
    (entry["recipe"], entry["arguments"]): extended(entry, entry.get("fields", {})) for entry in PUBLISHED["recipes"]
}


def test_every_row_names_its_source():
    assert {entry["source"] for entry in PUBLISHED["recipes"]} == set(PUBLISHED["sources"])


@pytest.mark.parametrize(("name", "arguments"), EXPECTED)
def test_constants_equal_the_published_constants(name, arguments):
    recipe = toy.load(name, arguments)
    found = {
        "decay per step": recipe.optim.learning_rate * recipe.optim.weight_decay,
        "decayed weights": recipe.optim.weight_decay_mask or "kernel$",  # the same groups: tests/optim/test_groups.py
    }
    expected = {**EXPECTED[name, arguments]}
    if "task" in expected:
        expected["task"] = str(recipes.parse_task(expected["task"]))
    found |= {path: recipes.get(recipe, path) for path in expected if path not in found}
    wrong = {}
    for path, value in expected.items():
        same = found[path] == pytest.approx(value) if isinstance(value, float) else found[path] == value
        if not same:
            wrong[path] = f"{found[path]!r} instead of {value!r}"
    assert not wrong


def test_every_published_recipe_is_in_the_table():
    ours = {"cifar10_scratch", "digits", "fashion_mnist", "fashion_mnist_models", "fashion_mnist_transfer", "folder"}
    ours |= {
        "cifar100_scratch",
        "fashion_mnist_hour",
        "mae_fashion_mnist",
        "masked_patch_fashion_mnist",
        "segmentation",
    }
    assert {name for name, _ in EXPECTED} == set(toy.VARIATIONS) - ours


def test_augreg_levels_match_big_vision():
    """The level that big_vision's configurations take for a size, and what the levels are."""
    found = {}
    for name in ("vit_i1k", "vit_i21k"):
        for variant in ("ViT_Ti16", "ViT_S32", "ViT_S16", "ViT_B32", "ViT_B16", "ViT_L16"):
            data = toy.load(name, variant).data
            found[name, variant] = (re.findall(r"randaug\(2, (\d+)\)", data.pp_train), data.mixup)
    none, light1, light2 = ([], 0.0), (["0"], 0.0), (["10"], 0.2)
    medium1, medium2 = (["15"], 0.2), (["15"], 0.5)
    assert list(found.values()) == [light1, medium1, *[medium2] * 4, none, none, light1, light2, light2, medium2]
    assert common.AUGREG["strong1"] == ("randaug(2, 20)", 0.5)
    assert common.AUGREG["strong2"] == ("randaug(2, 20)", 0.8)


def test_few_shot_evaluators_match_big_vision():
    evaluators = toy.load("vit_i21k", "").evaluators
    pp = "decode|resize(256)|central_crop(224)|value_range(-1, 1)"
    for name, source, train, test in (
        ("caltech", "caltech101", "train", "test"),
        ("cars", "cars196:2.1.0", "train", "test"),
        ("cifar100", "cifar100", "train", "test"),
        ("dtd", "dtd", "train", "test"),
        ("pets", "oxford_iiit_pet", "train", "test"),
        ("uc_merced", "uc_merced", "train[:1000]", "train[1000:]"),
    ):
        assert (
            f"fewshot(name='{name}', source='tfds:{source}', train_split='{train}', split='{test}', pp='{pp}', "
            "every=25_000)"
        ) in evaluators


def test_vtab_images_are_not_cropped_or_flipped_if_that_changes_the_label():
    """BiT, appendix F, which the ViT paper follows."""
    uncropped = {"clevr_count", "clevr_distance", "dmlab", "kitti_distance", "dsprites_location"}
    unmirrored = {"dsprites_orientation", "smallnorb_azimuth", "dsprites_location"}
    for task in vtab.TASKS:
        words = toy.load("finetune", f"ViT_B16,vtab:{task}").data.pp_train.split("|")
        assert ("flip_lr" not in words) == (task in unmirrored), task
        resized = ["resize(384, cast=False)"]
        if task not in uncropped:
            resized = ["resize(448, cast=False)", "random_crop(384)"]
        assert [word for word in words if "resize" in word or "crop" in word] == resized, task
    with_options = toy.load("finetune", "ViT_H14,vtab:dsprites_location#download=True").data
    assert with_options.pp_train == "decode|resize(378, cast=False)|value_range(-1, 1)"


def test_vtab_learning_rates_match_the_published_code():
    """`piecewise_constant` of TensorFlow 1 keeps the old rate at the boundary itself."""
    recipe = toy.load("vtab", "")
    rate = create_schedule(recipe.optim.schedule, recipe.optim.learning_rate, recipe.total_steps)
    for step in (0, 40, 80, 300, 301, 600, 601, 900, 901, 999):
        warmup = min(1.0, step / 80)
        expected = 0.01 * warmup * 0.1 ** sum(step > boundary for boundary in (300, 600, 900))
        assert float(rate(step)) == pytest.approx(expected, rel=1e-5, abs=1e-12)  # float32


@pytest.mark.parametrize(
    ("name", "arguments", "file"),
    [
        ("finetune", "ViT_B16,cifar10", "ViT-B_16.npz"),
        ("finetune", "R50_B16,cifar10", "R50+ViT-B_16.npz"),
        ("vtab", "ViT_S16,svhn", "S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0.npz"),
        ("augreg_transfer", "ViT_B32,pets", "B_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0.npz"),
        ("augreg_transfer", "R26_S32,pets", "R26_S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0.npz"),
        ("bit_hyperrule", "BiT_R101x1,cifar10", "BiT-M-R101x1.npz"),
    ],
)
def test_checkpoints_have_published_names(name, arguments, file):
    recipe = toy.load(name, arguments)
    assert zoo.find(recipe.model.variant, recipe.model.weights).path.endswith(f"/{file}")
