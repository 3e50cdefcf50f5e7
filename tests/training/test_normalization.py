"""A trained model stores the normalization of its input, from the recipe's preprocessing."""

import json
import logging
import shutil

import pytest

import keras_vit
from keras_vit.checkpoints.recognition import read_headers
from keras_vit.cli import command_line
from keras_vit.runs.pixel_range import set_normalization
from tests import golden_data, programs, tiny
from tests.data import example_images

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize(
    "pp,expected",
    [
        ("decode|resize(32)|value_range(-1, 1)", ((0.5,) * 3, (0.5,) * 3)),
        ("value_range(0, 1)", ((0.0,) * 3, (1.0,) * 3)),
        ("flip_lr|value_norm", IMAGENET),
    ],
)
def test_preprocessing_of_the_recipe_is_recorded(pp, expected):
    model = tiny.model()
    set_normalization(model, pp)
    assert model.input_normalization == expected


def test_weights_of_another_normalization_are_reported(caplog):
    model = tiny.model()
    model.input_normalization = IMAGENET
    with caplog.at_level(logging.WARNING, logger="absl"):
        set_normalization(model, "value_norm")
    assert not caplog.records
    with caplog.at_level(logging.WARNING, logger="absl"):
        set_normalization(model, "value_range(-1, 1)")
    assert "--config.data.pp_eval='value_norm((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))'" in caplog.text
    assert model.input_normalization == ((0.5,) * 3, (0.5,) * 3)


def test_a_model_that_normalizes_itself_expects_its_range(caplog):
    model = tiny.model(input_range=(0, 255))
    with caplog.at_level(logging.WARNING, logger="absl"):
        set_normalization(model, "decode|resize(32)")
        set_normalization(model, "value_range(0, 255)")
    assert not caplog.records
    with caplog.at_level(logging.WARNING, logger="absl"):
        set_normalization(model, "decode|value_range(-1, 1)")
    assert "--config.data.pp_eval='decode|value_range(0.0, 255.0)'" in caplog.text
    assert model.input_normalization is None


# The weights that a flag names


IMAGENET_NORM = "value_norm((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))"
MINE = """
from keras_vit import recipe

def get_config():
    return recipe.Recipe(
        total_steps=1,
        model=recipe.Model(image_size=56, head="reset"),
        data=recipe.Data(
            "folder:SOURCE",
            pp_train="decode|resize(56)|flip_lr|value_range(-1, 1)",
            pp_eval="decode|resize(56)|value_range(-1, 1)",
            batch_size=4,
        ),
        evaluators=("linear_probe",),
    )
"""


@pytest.fixture
def dinov2(tmp_path):
    """A directory as of `facebook/dinov2-small`, with the weights of a tiny one."""
    directory = tmp_path / "dinov2"
    directory.mkdir()
    shutil.copy(golden_data.GOLDEN / "hf_dinov2.safetensors", directory / "model.safetensors")
    shutil.copy(golden_data.GOLDEN / "hf_dinov2_config.json", directory / "config.json")
    return directory


def strings(tmp_path, *arguments):
    """The preprocessing of the recipe that the training program runs with these arguments."""
    (tmp_path / "mine.py").write_text(MINE)
    main = programs.load("train.main")
    command_line.parse(["main", f"--config={tmp_path}/mine.py", f"--workdir={tmp_path}/run", *arguments])
    data = main.cli.recipe_from_flags((), str(tmp_path / "run")).data
    return [data.pp_train, data.pp_eval]


OF_RECIPE = ["decode|resize(56)|flip_lr|value_range(-1, 1)", "decode|resize(56)|value_range(-1, 1)"]
OF_WEIGHTS = [f"decode|resize(56)|flip_lr|{IMAGENET_NORM}", f"decode|resize(56)|{IMAGENET_NORM}"]


@pytest.mark.parametrize("flag", ["--weights=", "--config.model.weights="])
def test_images_are_normalized_as_the_weights_were_trained(flag, dinov2, tmp_path):
    assert strings(tmp_path, f"{flag}{dinov2}") == OF_WEIGHTS


def test_preprocessing_that_a_flag_sets_is_kept(dinov2, tmp_path):
    given = f"--config.data.pp_train={OF_RECIPE[0]}"
    assert strings(tmp_path, f"--weights={dinov2}", given) == [OF_RECIPE[0], OF_WEIGHTS[1]]
    assert strings(tmp_path, f"--weights={dinov2}", given, f"--config.data.pp_eval={OF_RECIPE[1]}") == OF_RECIPE


@pytest.mark.slow
def test_weights_of_the_same_or_an_unknown_normalization_change_nothing(tmp_path):
    model = tiny.model()
    for known in (None, (0.5, 0.5)):
        model.input_normalization = known
        assert strings(tmp_path, f"--weights={keras_vit.save_checkpoint(model, tmp_path / 'vit.npz')}") == OF_RECIPE
    for arguments in ([], ["--weights=none"]):
        assert strings(tmp_path, "--config.model.image_size=64", *arguments) == OF_RECIPE


@pytest.mark.slow
def test_weights_load_into_a_model_with_an_input_range(tmp_path):
    model = tiny.model(input_range=(0, 255))
    model.input_normalization = IMAGENET
    model.save(tmp_path / "model.keras")
    assert strings(tmp_path, f"--weights={tmp_path}/model.keras")[1] == "decode|resize(56)|value_range(0.0, 255.0)"


def test_normalization_of_each_project_has_an_operation():
    """Transformers' DINOv2 has ImageNet's mean and deviation, and Google's files have [-1, 1]."""
    assert read_headers(golden_data.GOLDEN / "vit_gap.npz").normalization == "value_range(-1, 1)"
    assert read_headers(golden_data.GOLDEN / "timm_dinov2.safetensors").normalization == IMAGENET_NORM


@pytest.mark.slow
def test_a_run_has_the_normalization_of_its_weights_and_resumes_without_them(dinov2, tmp_path):
    source = example_images.folder(tmp_path / "pictures", count=5)
    (tmp_path / "mine.py").write_text(MINE.replace("SOURCE", source))
    flags = [f"--config={tmp_path}/mine.py", f"--workdir={tmp_path}/run", f"--config.model.weights={dinov2}"]
    code, output = programs.run("train.main", *flags)
    assert code == 0, output
    assert "data.pp_eval ends in value_norm" in output and "The weights expect" not in output
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert [config["recipe"]["data"][name] for name in ("pp_train", "pp_eval")] == OF_WEIGHTS
    assert config["preprocess"] == OF_WEIGHTS[1]
    dinov2.rename(tmp_path / "moved")
    code, output = programs.run("train.main", *flags, "--config.total_steps=2")
    assert code == 0 and "Resuming from the checkpoint of step 1" in output, output
