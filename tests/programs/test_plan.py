"""The programs that plan and that average over VTAB."""

import functools
import json

import numpy as np
import pytest

from keras_vit import cli
from keras_vit import recipe as recipes
from keras_vit.data import readers
from keras_vit.training.planning import cost
from tests import programs
from tests.recipe import toy
from train.datasets import sizes

OF_YOUR_OWN = [
    ("bit_hyperrule", "BiT_R50x1,tfds:unknown"),
    *(case for case in toy.CASES if case[0] in ("folder", "segmentation")),
]


@pytest.fixture
def recipe(monkeypatch):
    recipe = recipes.Recipe(
        total_steps=100_000,
        model=recipes.Model("ViT-L/16"),
        data=recipes.Data(source="tfds:imagenet2012", train_split="train[:99%]", batch_size=4_096),
    )
    monkeypatch.setattr(cli, "recipe_from_flags", lambda *_, **options: recipe)
    return recipe


def test_plan_prints_the_estimates(recipe, capsys):
    assert programs.call("train.plan", "--utilization=0.4", "--devices=8") == 0
    text = capsys.readouterr().out
    for expected in (
        "ViT-L/16, 224 px, 197 tokens, 1,000 classes",
        "304,326,632",
        "61.6 G per image",
        "at 40% of 61.5",
        "100,000 steps, 409,600,000 images",
        "322.9 epochs of 1,268,355 examples",
        "4.53 GiB per device for weights",  # four numbers of float32 each: weight, gradient and two moments
    ):
        assert expected in text
    for core_days in ("230 for ViT-L/16 on ImageNet-21k", "680 for ViT-L/16 on JFT"):
        assert core_days in text
    assert "ViT-H/14" not in text  # another model


def test_epochs_are_planned_without_the_data(capsys):
    assert programs.call("train.plan", "--config=vit_s16_i1k", "--epochs=3", "--json") == 0
    assert json.loads(capsys.readouterr().out)["epochs"] == pytest.approx(3, abs=1e-3)


def test_plan_of_custom_sizes_does_not_show_the_name_of_the_variant(recipe, capsys, monkeypatch):
    small = recipes.replace(recipe, {"model.arguments": {"num_layers": 2, "hidden_size": 64, "num_heads": 2}})
    monkeypatch.setattr(cli, "recipe_from_flags", lambda *_, **options: small)
    assert programs.call("train.plan") == 0
    assert "ViT of 2 layers, 224 px" in capsys.readouterr().out


def test_amounts_and_sizes_have_their_units():
    program = programs.load("train.plan")
    amounts = {10**6 - 1: "999,999 ", 10**6: "1 M ", 17.6e9: "17.6 G ", 10**12: "1 T ", 2e15: "2 P ", 10**18: "1 E "}
    assert {number: program.amount(number) for number in amounts} == amounts
    sizes = {1536: "1.5 KiB", 2**20: "1 MiB", 2**30 - 2**20: "1.02e+03 MiB", 2**30: "1 GiB", 5 * 2**40: "5.12e+03 GiB"}
    assert {count: program.size(count) for count in sizes} == sizes


def test_plan_prints_json(recipe, capsys):
    programs.call("train.plan", "--utilization=1", "--json", "--examples=4096", "--classes=10")
    content = json.loads(capsys.readouterr().out)
    assert content["parameters"] == 304_326_632 - 990 * 1_025
    assert content["epochs"] == 100_000
    assert content["examples_seen"] == 409_600_000
    assert content["batch_size"] == 4_096
    assert content["training_flops_per_step"] == 4_096 * content["training_flops_per_image"]
    assert content["training_flops"] == 100_000 * content["training_flops_per_step"]
    # 61.6e9 * 6 * 4.096e8 operations on 61.5e12 a second.
    assert content["tpu_v3_core_days"] == pytest.approx(61.6e9 * 6 * 4.096e8 / 61.5e12 / 86_400, rel=0.01)


def test_plan_of_unknown_data_requires_their_size(recipe):
    recipe.data.source = "folder:/nowhere"
    with pytest.raises(ValueError, match="Pass --examples and --classes"):
        programs.call("train.plan")


@pytest.fixture
def no_data(monkeypatch):
    """A machine with only the data of the package."""

    def missing(read):
        @functools.wraps(read)  # with its options
        def refuse(location, **_):
            raise FileNotFoundError(f"There is no {location!r} on this machine.")

        return refuse

    reader_of = readers.reader_of
    of_this_machine = lambda kind: reader_of(kind) if kind == "digits" else missing(reader_of(kind))  # noqa: E731
    monkeypatch.setattr(readers, "reader_of", of_this_machine)


@pytest.mark.parametrize(("name", "arguments"), [case for case in toy.CASES if case not in OF_YOUR_OWN])
def test_every_recipe_is_planned_without_its_data(name, arguments, no_data, capsys):
    path = toy.CONFIGS / f"{name}.py"
    unknown = name in ("fashion_mnist_transfer", "vtab") or "vtab:" in (arguments or "")  # arrays of the user's, VTAB
    sizes = ("--examples=1000", "--classes=2") if unknown else ()
    assert programs.call("train.plan", f"--config={path}{f':{arguments}' if arguments else ''}", "--json", *sizes) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["examples"] * content["epochs"] == pytest.approx(content["examples_seen"])
    assert content["classes"] >= 2 and content["tpu_v3_core_days"] > 0


@pytest.mark.parametrize(("name", "arguments"), OF_YOUR_OWN)
def test_error_of_a_recipe_for_your_own_data_names_missing_settings(name, arguments, no_data):
    wanted = arguments.rpartition("tfds:")[2].partition(",")[0].partition("#")[0]
    with pytest.raises((OSError, ValueError), match=f"'{wanted}'"):
        programs.call("train.plan", f"--config={toy.CONFIGS / name}.py:{arguments}")


def test_available_data_are_planned_with_their_own_size(recipe, capsys, monkeypatch, tmp_path):
    arrays = {"x_train": np.zeros((6, 8, 8), np.uint8), "y_train": np.arange(6) % 3}
    np.savez(tmp_path / "mine.npz", **arrays)
    recipe.data.source, recipe.data.train_split = f"npz:{tmp_path / 'mine.npz'}", "train"
    recipe.data.pp_train = "resize(224)|value_range(-1, 1)"
    programs.call("train.plan", "--json")
    content = json.loads(capsys.readouterr().out)
    assert (content["examples"], content["classes"]) == (6, 3)
    # One channel: 2 * 16 * 16 * 1,024 weights less than for colors.
    assert content["parameters"] == cost.of_variant("ViT-L/16", classes=3).parameters - 2 * 256 * 1_024


def test_gray_images_are_known_without_their_data(recipe, no_data, capsys, caplog):
    recipe.data.source, recipe.data.train_split = "fashion_mnist", "train"
    recipe.data.pp_train = "resize(224)|value_range(-1, 1)"
    programs.call("train.plan", "--json")
    content = json.loads(capsys.readouterr().out)
    assert "Planned for 60,000 examples of 10 classes." in caplog.text
    assert (content["examples"], content["classes"]) == (60_000, 10)
    assert content["parameters"] == cost.of_variant("ViT-L/16", classes=10).parameters - 2 * 256 * 1_024


@pytest.mark.parametrize("arguments", ["fashion_mnist.py:/typo", "fashion_mnist_transfer.py:pretrain,/typo"])
def test_missing_folder_is_reported(arguments, no_data):
    with pytest.raises(ValueError, match="There is no '/typo.*Pass --examples and --classes instead"):
        programs.call("train.plan", f"--config={toy.CONFIGS}/{arguments}")


def test_sizes_of_known_data_sets_are_used():
    assert sizes.size("tfds:imagenet2012", "train[:99%]") == (1_268_355, 1000, None)
    assert sizes.size("tfds:imagenet2012:5.1.0#data_dir='/x'", "validation") == (50_000, 1000, None)
    assert sizes.size("tfds:imagenet21k", "full[51200:]") == (14_145_922, 21_843, None)
    assert sizes.size("tfds:cifar100/x:3.0.2", "test") == (10_000, 100, None)  # not those of "tfds:cifar10"
    assert sizes.size("tfds:oxford_iiit_pet", "train+test") == (3_680 + 3_669, 37, None)
    assert sizes.size("tfds:oxford_flowers102", "train+validation+test") == (2 * 1_020 + 6_149, 102, None)
    assert sizes.size("folder:ADEChallengeData2016/images#masks=x", "train+validation") == (22_210, 150, None)
    assert sizes.size("tfrecord:jft", "train") == (303_000_000, 18_291, None)
    assert sizes.size("tfds:cifar10_1", "test") == sizes.Size()
    assert sizes.size("fashion_mnist", "test") == (10_000, 10, (28, 28, 1))


@pytest.mark.parametrize("source", ["fashion_mnist:/mine", "idx:/mine", "npz:runs/two.npz", "folder:/mine"])
def test_sizes_of_your_own_folders_are_unknown(source):
    assert sizes.size(source, "validation") == sizes.Size()


@pytest.mark.slow
def test_flags_precede_the_numbers_of_the_data(tmp_path):
    np.savez(tmp_path / "mine.npz", x_train=np.zeros((6, 8, 8), np.uint8), y_train=np.arange(6) % 3)
    recipe = recipes.Recipe(data=recipes.Data(f"npz:{tmp_path / 'mine.npz'}", pp_train="value_range(-1, 1)"))
    assert sizes.of_recipe(recipe)[:2] == (6, 3)
    assert sizes.of_recipe(recipe, examples=50)[:2] == (50, 3)
    assert sizes.of_recipe(recipe, classes=10)[:2] == (6, 10)
    public = recipes.replace(recipe, {"data.source": "tfds:imagenet2012"})  # is not opened
    assert sizes.of_recipe(public, classes=10) == (1_281_167, 10, None)
