"""`--model`, `--weights`, `--image_size` and the data set: one choice sets all fields that follow from it."""

import dataclasses
import math

import keras
import numpy as np
import pytest

from keras_vit import recipe as recipes
from keras_vit import zoo
from keras_vit.cli import command_line
from keras_vit.runs import recipe_file
from tests import programs
from tests.recipe import toy


def from_flags(*arguments):
    plan = programs.load("train.plan")
    remaining = command_line.parse(["plan", *arguments])
    return plan.cli.recipe_from_flags(remaining[1:])


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Ten images of two classes, with commas in the names of their folders and files."""
    root = tmp_path_factory.mktemp("my, images")
    for number in range(10):
        folder = root / ("a, b" if number % 2 else "c")
        folder.mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (16, 20, 3), np.uint8)
        keras.utils.save_img(folder / f"{number},x.png", pixels, scale=False)
    return root


@pytest.mark.slow
def test_flags_set_data_model_weights_and_image_size(images):
    recipe = from_flags(f"folder:{images}", "--model=ViT_S16", "--weights=augreg", "--image_size=96")
    assert (recipe.data.source, recipe.model.variant) == (f"folder:{images}", "ViT-S/16")
    assert (recipe.model.weights, recipe.model.head) == ("augreg", "reset")
    assert recipe.model.image_size == 96
    assert recipe.data.pp_train.startswith("decode|resize(96, antialias=True)|flip_lr|")  # few images: only the head
    assert "resize(96, antialias=True)" in recipe.data.pp_eval
    assert from_flags("--data", str(images), "--model=ViT_B16").model.weights == "imagenet21k"
    assert from_flags(f"folder:{images}", "--weights=none", "--model=ViT_Ti16").model.weights is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--list_recipes"),
        (["digits"], "--config=digits"),
        (["--config=digits", "a", "b"], "'a', 'b'"),
        (["--config=digits", "--model=ViT_S17"], "'ViT_S17'"),
        (["--config=finetune", "--weights=augreg21k"], "'augreg21k'"),
    ],
)
def test_wrong_flags_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        from_flags(*arguments)


def test_missing_file_is_reported_before_the_data_are_read():
    with pytest.raises(FileNotFoundError, match="mine.npz"):
        from_flags("--config=digits", "--weights=mine.npz")


def test_the_size_of_images_scales_every_preprocessing():
    recipe = recipes.with_image_size(toy.load("augreg_transfer", "ViT_B32,pets"), 192)
    assert recipe.model.image_size == 192
    assert recipe.data.pp_train == "decode|resize_small(224)|random_crop(192)|flip_lr|value_range(-1, 1)"
    assert recipe.data.pp_eval == "decode|resize_small(224)|central_crop(192)|value_range(-1, 1)"
    recipe = recipes.with_image_size(toy.load("vit_i21k", "ViT_S16"), 448)
    assert any("resize(512)|central_crop(448)" in evaluator for evaluator in recipe.evaluators)
    recipe = recipes.with_image_size(toy.load("digits", None), 16)  # 8 pixels, never resized
    assert recipe.data.pp_train == "inception_crop(16, 70)|value_range(-1, 1)"
    assert recipe.data.pp_eval == "resize(16, antialias=True)|value_range(-1, 1)"


def test_every_operation_with_a_size_is_scaled():
    """To the nearest size. Other operations and other numbers stay."""
    names = ("resize", "resize_small", "resize_long", "central_crop", "random_crop", "scaled_crop", "inception_crop")
    for name in (*names, "decode_jpeg_and_inception_crop"):
        assert recipes.with_scaled_sizes(f"{name}(7, 50)", 0.4) == f"{name}(3, 50)"  # 2.8
    assert recipes.with_scaled_sizes("randaug(2, 10)|pad(4)", 0.5) == "randaug(2, 10)|pad(4)"
    plain = recipes.with_image_size(recipes.Recipe(data=recipes.Data(pp_train="flip_lr", pp_eval="")), 32).data
    assert (plain.pp_train, plain.pp_eval) == ("resize(32, antialias=True)|flip_lr", "resize(32, antialias=True)")


def test_changing_the_variant_changes_sizes_and_weights():
    small = recipes.with_variant(toy.load("digits", None), "ViT_S16")
    assert small.model.variant == "ViT-S/16" and small.model.weights is None
    assert small.model.arguments == {"pooling": "gap", "position_embedding": "sincos2d"}
    assert recipes.with_variant(toy.load("finetune", "ViT_B16,pets"), "ViT-L/16").model.weights == "imagenet21k"
    bit = recipes.with_variant(toy.load("finetune", "ViT_B16,pets"), "BiT_R50x1")
    assert bit.model.weights == "bit-m" and bit.model.arguments == {"pool_padding": "zeros"}
    assert recipes.with_variant(bit, "ViT_S16").model.arguments == {}


def test_padding_of_published_weights_is_not_applied_to_a_file(tmp_path):
    bit = recipes.with_variant(toy.load("finetune", "ViT_B16,pets"), "BiT_R50x1")
    other = recipes.with_variant(bit, "BiT_R101x1")
    assert other.model.arguments == {"pool_padding": "zeros"}  # these weights are published, too
    own = dataclasses.replace(bit, model=dataclasses.replace(bit.model, weights=str(tmp_path / "own.npz")))
    (tmp_path / "own.npz").touch()
    assert recipes.with_variant(own, "BiT_R101x1").model.arguments == {}


def test_every_recipe_is_listed():
    assert set(recipe_file.names()) == {path.stem for path in toy.CONFIGS.glob("*.py")} - {"__init__", "common"}
    for line in recipe_file.table().splitlines():
        assert line.partition(" ")[2].strip()


@pytest.mark.slow
def test_training_starts_from_weights_by_name(images, tmp_path, monkeypatch):
    wide = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 16}
    recipe = recipes.Recipe(model=recipes.Model("ViT-Ti/16", 32, arguments=wide))
    model = recipes.build_model(recipe, classes=7)
    model.get_layer("embedding").kernel.assign_add(keras.ops.ones_like(model.get_layer("embedding").kernel))
    path = tmp_path / "mirror" / zoo.find("ViT-Ti/16", "augreg").path
    path.parent.mkdir(parents=True)
    from keras_vit.checkpoints import save_checkpoint

    save_checkpoint(model, path, format="google")
    monkeypatch.setenv("KERAS_VIT_WEIGHTS_DIR", str(tmp_path / "mirror"))
    arguments = [f"--config.model.arguments.{name}={value}" for name, value in wide.items()]
    main = programs.load("train.main")
    remaining = command_line.parse(
        [
            *("train", f"folder:{images}", "--model=ViT_Ti16", "--weights=augreg", "--image_size=32", *arguments),
            *("--config.total_steps=1", "--config.data.batch_size=2", "--config.optim.learning_rate=0"),
            *("--config.evaluators=()", "--config.optim.accumulation_steps=1", f"--workdir={tmp_path / 'run'}"),
        ]
    )
    assert not main.main(remaining)
    trained = keras.models.load_model(tmp_path / "run" / "model.keras")
    np.testing.assert_allclose(
        trained.get_layer("embedding").kernel, model.get_layer("embedding").kernel, rtol=0, atol=1e-6
    )


def test_fit_function_of_a_recipe_file_is_called(tmp_path):
    """`fit` gets the recipe and the changes of the flags, and returns the recipe."""
    text = "import dataclasses\nfrom keras_vit import recipe as r\n\ndef get_config():\n    return r.Recipe()\n\n"
    text += "def fit(recipe, change):\n    return change(dataclasses.replace(recipe, seed=5, total_steps=6))\n"
    (tmp_path / "mine.py").write_text(text)
    recipe = from_flags(f"--config={tmp_path / 'mine.py'}", "--config.total_steps=7")
    assert (recipe.seed, recipe.total_steps) == (5, 7)


def test_the_most_used_settings_are_flags(tmp_path):
    recipe = from_flags("--config=digits", "--steps=7", "--batch_size=8", "--learning_rate=1e-3", "--seed=3")
    given = ("total_steps=7", "data.batch_size=8", "optim.learning_rate=0.001", "seed=3")
    assert recipe == from_flags("--config=digits", *(f"--config.{field}" for field in given))
    assert recipe == from_flags("--config=digits", *(f"--config.{field}" for field in given), "--learning_rate=1e-3")


def test_epochs_set_the_number_of_steps():
    """Of the training images after all other settings, and rounded; the digits have 1,437."""
    known = ("--config=digits", "--batch_size=100")
    assert from_flags(*known, "--epochs=2").total_steps == 29
    assert from_flags(*known, "--epochs=2", "--config.data.train_split=train[:500]").total_steps == 10
    assert from_flags(*known, "--epochs=1e-6").total_steps == 1
    for epochs in (0.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"epochs={epochs}"):
            from_flags(*known, f"--epochs={epochs}")


def test_epochs_flag_sets_steps_and_intervals(images):
    """The warm-up and the intervals of the evaluations follow from them, as from a number of steps."""
    common = (f"folder:{images}", "--model=ViT_Ti16", "--weights=none", "--image_size=32", "--batch_size=2")
    recipe = from_flags(*common, "--epochs=50")
    assert recipe == from_flags(*common, f"--steps={recipe.total_steps}")
    assert recipe.optim.schedule.warmup_steps == recipe.total_steps // 10
