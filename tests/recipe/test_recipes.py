"""Recipes: their descriptions, their choices, and a short run of each recipe with its evaluators."""

import ast
import json
import os
import pathlib
import re

import numpy as np
import pytest
from absl.testing import flagsaver

from keras_vit import evaluators, models
from keras_vit import recipe as recipes
from keras_vit.optim import create_schedule
from keras_vit.runs import run_fields
from keras_vit.runs.run_directory import read_metrics
from keras_vit.training import run_summary, train
from keras_vit.training.planning import plan
from keras_vit.util import source_specs
from keras_vit.zoo.variants import constructor_name
from tests import programs, selection
from tests.recipe import toy
from train.configs import common
from train.datasets import sizes

ROOT = pathlib.Path(__file__).parents[2]
FILES = sorted(path.stem for path in toy.CONFIGS.glob("*.py") if path.stem not in ("__init__", "common"))
NEED_DATA = ("folder", "bit_hyperrule")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pictures")


def load(name, arguments=""):
    return toy.load(name, arguments)


def test_every_recipe_is_tested():
    assert set(FILES) <= set(toy.VARIATIONS)


@pytest.mark.parametrize("name", FILES)
def test_docstring_has_the_required_parts(name):
    text = ast.get_docstring(ast.parse((toy.CONFIGS / f"{name}.py").read_text()))
    assert f"keras-vit train --config={name}" in text
    for what in ("Cost", "Smaller machines"):
        assert what in text, f"{name} does not tell: {what}"
    if name not in ("folder", "segmentation"):
        assert "Published" in text and "arxiv.org/abs/" in text


@pytest.mark.parametrize(("name", "arguments"), toy.CASES)
def test_recipes_are_valid_and_their_evaluators_exist(name, arguments, monkeypatch, folder):
    assert name in FILES
    toy.replace_readers(monkeypatch, folder)
    recipe = toy.load(name, arguments)
    assert recipe == recipes.from_dict(recipes.to_dict(recipe))
    evaluators.Suite(recipe.evaluators)
    assert recipe.model.variant in models.list_models()


# ---- rules that choose by the data or the machine --------------------------------------------------------------------


def test_hyperrule_depends_on_data_and_image_size():
    small, middle, large = (common.hyperrule(number, 32, 32) for number in (19_999, 20_000, 500_000))
    assert (small.mixup, middle.mixup, large.mixup) == (0.0, 0.1, 0.1)
    assert [rule.supports[-1] for rule in (small, middle, large)] == [500, 10_000, 20_000]
    assert (small.resize, small.crop) == (160, 128)
    assert common.hyperrule(10, 95, 97).crop == 128 and common.hyperrule(10, 96, 96).crop == 480

    rate = create_schedule(small.schedule(), 0.003, 500)
    # The published rule: rate * step / 100 before step 100, then a tenth for each of 200, 300, 400 that is < step.
    for step in (0, 50, 100, 101, 200, 201, 300, 301, 400, 401, 499):
        expected = 0.003 * (step / 100 if step < 100 else 0.1 ** sum(bound < step for bound in (200, 300, 400)))
        assert float(rate(step)) == pytest.approx(expected, rel=1e-5, abs=1e-12)  # float32


def test_hyperrule_reads_the_size_of_unknown_data(monkeypatch, folder):
    toy.replace_readers(monkeypatch, folder)
    recipe = load("bit_hyperrule", "BiT_R50x1,tfds:unknown")
    assert (recipe.total_steps, recipe.model.image_size, recipe.data.mixup) == (500, 128, 0.0)


def test_loading_a_recipe_opens_no_data(monkeypatch):
    """`bit_hyperrule` does so for data that it does not know."""
    monkeypatch.setattr(source_specs, "KINDS", {})
    for name, arguments in toy.CASES:
        if "unknown" not in (arguments or ""):
            toy.load(name, arguments)


def test_the_folder_of_a_recipe_may_have_commas_in_its_name(tmp_path):
    split = toy.module("folder").folder_and_variant
    plain, comma = str(tmp_path / "roses"), str(tmp_path / "roses, pink")
    os.mkdir(plain)
    os.mkdir(comma)
    assert split(comma) == (comma, None)
    assert split(f"{comma},ViT_Ti16") == split(f"{comma}, ViT-Ti/16") == (comma, "ViT-Ti/16")
    assert split(f"folder:{comma}") == (f"folder:{comma}", None)
    assert split("") == split(",") == ("images", None)
    assert split("gs://a/b,ViT_S16") == ("gs://a/b", "ViT-S/16")
    for name in models.list_models():
        assert split(f"a,{name}") == split(f"a,{constructor_name(name)}") == ("a", name)
    with pytest.raises(ValueError, match="ViT_B17"):
        split(f"{plain},ViT_B17")


def test_variants_may_be_written_as_constructors():
    for name in models.list_models():
        assert common.variant(constructor_name(name)) == common.variant(name) == name
    with pytest.raises(ValueError, match="There is no model 'ViT_B17'. Did you mean 'ViT_B16'?"):
        common.variant("ViT_B17")
    with pytest.raises(ValueError, match=r"not for 'ViT_B16'. It takes: BiT_R50x1, BiT_R50x3"):
        common.variant("ViT_B16", models.BIT)
    with pytest.raises(ValueError, match="takes 2 arguments, such as :ViT_B16,cifar10. Received: :a,b,c"):
        common.arguments("a,b,c", "ViT_B16", "cifar10")


# Minutes on any machine, or, for the paper's own runs, what the paper says.
WITHOUT_COST = {"digits", "fashion_mnist", "fashion_mnist_models", "fashion_mnist_transfer", "folder", "vit_paper"}
WITHOUT_COST |= {"segmentation", "fashion_mnist_hour", "mae_fashion_mnist", "masked_patch_fashion_mnist"}
# Arguments that the figures of a docstring belong to, where they are not those of the recipe without arguments.
COSTS = {
    "finetune": ("ViT_B16,cifar10", "ViT_B16,imagenet2012"),
    "cifar10_scratch": (None,),
    "cifar100_scratch": (None,),
}


@pytest.mark.parametrize("name", [name for name in FILES if name not in WITHOUT_COST])
def test_costs_in_the_docstrings_match_the_plan(name):
    cost = r"([\d.]+(?: and [\d.]+)*)\s+TPUv3-core-days[^.;]*by\s+`keras-vit plan`"
    stated = re.findall(cost, toy.module(name).__doc__)
    stated = [float(figure) for figures in stated for figure in figures.split(" and ")]
    planned = []
    for arguments in COSTS.get(name, ("",)):
        recipe = toy.load(name, arguments)
        size = sizes.size(recipe.data.source, recipe.data.train_split)
        planned.append(plan.of_recipe(recipe, size.classes or 10, size.examples).core_days())
    assert stated == pytest.approx(planned, rel=0.06)  # two digits, or one


@pytest.mark.parametrize(
    ("name", "arguments", "steps", "share"),
    [
        ("digits", None, 300, 1 / 2),
        ("cifar10_scratch", None, 4_883, 1 / 4),
        ("masked_patch_fashion_mnist", None, 936, 2 / 8),
        ("fashion_mnist_hour", "vit", 936, 2 / 34),
        ("fashion_mnist_hour", "bit", 1_874, 2 / 11),
        ("fashion_mnist_hour", "hybrid", 1_874, 2 / 11),
    ],
)
def test_shorter_runs_in_the_docstrings_are_the_stated_share(name, arguments, steps, share):
    assert str(steps) in toy.module(name).__doc__
    assert abs(toy.load(name, arguments).total_steps * share - steps) <= 1


def differences(first, second):
    """The fields in which two recipes differ."""
    first, second = (run_fields.flatten(recipes.to_dict(recipe)) for recipe in (first, second))
    return {field for field in {**first, **second} if first.get(field) != second.get(field)}


def test_recipes_differ_where_their_docstrings_say_so():
    mae, masked = (toy.load(name, None) for name in ("mae_fashion_mnist", "masked_patch_fashion_mnist"))
    fields = {"task", "total_steps", "eval_every", "optim.learning_rate", "optim.weight_decay_mask"}
    assert differences(mae, masked) == fields and 15 * masked.total_steps == 8 * mae.total_steps
    hour, cifar = toy.load("fashion_mnist_hour", "vit"), toy.load("cifar10_scratch", None)
    assert {field for field in differences(hour, cifar) if field.startswith("optim")} == {"optim.schedule.warmup_steps"}
    assert hour.model.arguments["position_embedding"] == cifar.model.arguments["position_embedding"]


# ---- every recipe runs -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"), selection.cases(toy.ONLY_BUILT, toy.ONLY_BUILT[::5], selection.EXHAUSTIVE)
)
def test_models_build_at_full_size(name, arguments, monkeypatch, folder):
    """Without values, which takes no memory."""
    toy.replace_readers(monkeypatch, folder)
    recipe = toy.load(name, arguments)
    model = recipes.describe_model(recipe, classes=10)
    if isinstance(recipe.task, recipes.Classification):
        assert model.output_shape == (None, 10)
    assert model.count_params() == plan.model_cost(recipe, classes=10).parameters


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    selection.cases(
        [case for case in toy.CASES if case not in toy.ONLY_BUILT],
        toy.PROGRAM_SHAPES,
        selection.EXHAUSTIVE,
    ),
)
def test_every_recipe_runs_two_steps_and_its_evaluators(name, arguments, monkeypatch, folder, tmp_path):
    main = programs.load("train.main")
    toy.replace_readers(monkeypatch, folder)
    recipe = toy.shrink(toy.load(name, arguments))
    recipe.deterministic = False  # would stay on for the tests that follow
    monkeypatch.setattr(main.cli, "recipe_from_flags", lambda *_: recipe)
    monkeypatch.setattr(run_summary, "draw_figure", lambda *_: None)
    monkeypatch.setattr(train.evaluators, "split_opener", toy.split_opener)
    with flagsaver.flagsaver(workdir=str(tmp_path / "run"), distribute="one_device"):
        main.main([])

    lines = read_metrics(str(tmp_path / "run"))
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 2 and np.isfinite(losses).all()
    if isinstance(recipe.task, recipes.Classification):
        assert losses[0] == pytest.approx(loss_of_a_new_head(recipe, tmp_path / "run"), rel=5e-3)  # in bfloat16
    assert [line["step"] for line in lines if "eval_loss" in line] == [2]
    ran = {line["evaluator"] for line in lines if "evaluator" in line}
    assert ran == set(evaluators.Suite(recipe.evaluators).evaluators)


def loss_of_a_new_head(recipe, run):
    """By hand: all logits are the head's bias, whatever the images are and however labels are mixed."""
    classes = json.loads((run / "config.json").read_text())["data"]["num_classes"]
    bias = recipe.model.arguments.get("head_bias", 0.0)
    return np.log(classes) if recipe.loss == "softmax" else classes * np.log1p(np.exp(bias)) - bias
