"""Fine-tuning from a checkpoint of another project: the file determines the architecture."""

import json
import logging
import pathlib
import shutil

import numpy as np
import pytest

import keras_vit
from keras_vit import recipe as recipes
from keras_vit.training.run import load_weights
from tests import programs
from tests.training import small_runs

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"


@pytest.fixture
def huggingface(tmp_path):
    """A Hugging Face directory: exact GELU and another epsilon than the variant's."""
    directory = tmp_path / "hf"
    directory.mkdir()
    shutil.copy(GOLDEN / "hf_vit.safetensors", directory / "model.safetensors")
    shutil.copy(GOLDEN / "hf_vit_config.json", directory / "config.json")
    return directory


@pytest.fixture
def timm(tmp_path):
    """A timm file whose model has layer scale, registers and the mean of the patches."""
    source = keras_vit.VisionTransformer(
        *(4, 16, 2, 2, 32),
        image_size=8,
        channels=1,
        classes=5,
        pooling="gap",
        layer_scale=0.1,
        activation="gelu",
        norm_after_pooling=True,
    )
    return pathlib.Path(keras_vit.save_checkpoint(source, tmp_path / "timm", format="timm"))


def resolved(path, **fields):
    fields = {"variant": "ViT-Ti/16", **fields}
    return recipes.resolve(recipes.Recipe(model=recipes.Model(weights=str(path), **fields)))


@pytest.mark.slow
def test_a_huggingface_directory_decides_the_architecture(huggingface):
    config = json.loads((huggingface / "config.json").read_text())
    recipe = resolved(huggingface, image_size=config["image_size"])
    model = recipes.build_model(recipe, classes=3)
    assert (model.config.activation, model.config.layer_norm_epsilon) == ("gelu", config["layer_norm_eps"])
    assert model.config.hidden_size == config["hidden_size"]
    assert model.output_shape == (None, 3)
    report = keras_vit.load_checkpoint(model, str(huggingface), head="reset")
    assert set(report.reset) == {"head/kernel", "head/bias"}


@pytest.mark.slow
def test_a_timm_file_decides_the_architecture(timm):
    model = recipes.build_model(resolved(timm, image_size=8), classes=3, channels=1)
    assert (model.config.layer_scale is not None, model.config.pooling) == (True, "gap")
    assert (model.config.activation, model.config.norm_after_pooling) == ("gelu", True)
    keras_vit.load_checkpoint(model, str(timm), head="reset")


@pytest.mark.slow
def test_a_vit_pytorch_file_decides_the_architecture():
    file = GOLDEN / "vit_pytorch_one_head.safetensors"
    arguments = {"num_heads": 1, "patch_size": (4, 6)}
    recipe = resolved(file, image_size=(12, 24), arguments=arguments)
    model = recipes.build_model(recipe, classes=3, channels=1)
    assert (model.config.patch_norm, model.config.output_projection) == (True, "none")
    keras_vit.load_checkpoint(model, str(file), head="reset")


def test_arguments_of_the_recipe_precede_the_file(huggingface):
    recipe = resolved(huggingface, image_size=32, arguments={"dropout_rate": 0.3, "layer_norm_epsilon": 1e-3})
    assert recipe.model.arguments["dropout_rate"] == 0.3
    assert recipe.model.arguments["layer_norm_epsilon"] == 1e-3


@pytest.mark.slow
def test_file_of_the_same_variant_leaves_the_recipe_unchanged(tmp_path):
    source = keras_vit.create_model("ViT-Ti/16", image_size=32, classes=5, representation_size=8)
    path = keras_vit.save_checkpoint(source, tmp_path / "Ti_16.npz")
    assert resolved(path, image_size=64).model.arguments == {}
    assert resolved(path, image_size=64, head="keep").model.arguments == {"representation_size": 8}
    assert resolved(tmp_path / "missing.npz").model.arguments == {}


def test_the_change_is_logged(timm, caplog):
    with caplog.at_level(logging.INFO, logger="absl"):
        resolved(timm, image_size=8)
    assert "layer_scale" in caplog.text


RECIPE = """
from keras_vit import recipe

def get_config():
    pp = "value_range(-1, 1)"
    return recipe.Recipe(
        total_steps=2,
        model=recipe.Model(image_size=8, head="reset"),
        data=recipe.Data("digits", pp_train=pp, pp_eval=pp, batch_size=16, eval_batch_size=180),
    )
"""


@pytest.mark.slow
def test_run_resumes_without_the_checkpoint_file(timm, tmp_path):
    """Only `--config.model.weights=FILE` is needed; the run records the arguments from the file."""
    (tmp_path / "mine.py").write_text(RECIPE)

    def train(total_steps):
        flags = [f"--config={tmp_path}/mine.py", f"--workdir={tmp_path}/run", f"--config.model.weights={timm}"]
        code, output = programs.run("train.main", *flags, f"--config.total_steps={total_steps}")
        assert code == 0, output[-3000:]
        return output

    assert "layer_scale" in train(2)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["architecture"]["arguments"]["pooling"] == "gap"
    assert config["recipe"]["model"]["arguments"] == {}
    assert len(small_runs.final_weights(tmp_path / "run")) > 16
    timm.rename(tmp_path / "moved")
    assert "Resuming from the checkpoint of step 2" in train(4)


# BiT-M's published files were trained with zeros around the root's pooling


@pytest.mark.parametrize(
    ("config", "padding"),
    [("bit_hyperrule.py:BiT_R50x1,pets", "zeros"), ("bit_i21k.py", None), ("vtab.py:BiT_R50x1", "zeros")],
)
def test_recipes_of_published_bit_models_pad_with_zeros(config, padding):
    from keras_vit.runs import recipe_file

    recipe = recipe_file.load(f"train/configs/{config}")[0]
    assert recipe.model.arguments.get("pool_padding") == padding
    recipe.model.image_size, recipe.model.arguments = 32, {**recipe.model.arguments, "block_sizes": (1,)}
    model = recipes.build_model(recipe, classes=2)
    assert model.config.pool_padding == (padding or "infinity")
    assert np.isfinite(model(np.zeros((1, 32, 32, 3), np.float32))).all()


@pytest.mark.parametrize(
    ("class_names", "head", "kept"),
    [
        ("abcde", "auto", True),
        ("ABCDE", "auto", True),
        ("vwxyz", "auto", True),  # nothing in common: only their number is compared
        ("01234", "auto", True),
        ("bcdea", "auto", False),  # the class that was a is now the last
        ("bcdez", "auto", False),
        ("bcdea", "keep", True),
    ],
)
def test_head_with_reordered_classes_is_reset(class_names, head, kept, tmp_path):
    source = keras_vit.VisionTransformer(*(4, 16, 1, 2, 32), image_size=8, classes=5)
    source.get_layer("head").kernel.assign(np.ones((16, 5)))
    path = keras_vit.save_checkpoint(source, tmp_path / "timm", format="timm", class_names=list("abcde"))
    model = keras_vit.VisionTransformer(*(4, 16, 1, 2, 32), image_size=8, classes=5)
    recipe = recipes.Recipe(model=recipes.Model("ViT-Ti/16", image_size=8, weights=str(path), head=head))
    load_weights(model, recipe, tuple(class_names))
    assert np.asarray(model.get_layer("head").kernel).all() == kept  # a new head is zero
