"""Every program that names a model or weights takes a model of the Hugging Face hub, here one on this machine."""

import dataclasses
import json
import logging
import pathlib

import pytest

import keras_vit
from keras_vit.checkpoints import save_checkpoint
from keras_vit.models.resizing import Resizing
from keras_vit.training.chosen_recipe import Choices, recipe_of
from tests import programs, tiny
from tests.data import example_images
from tests.zoo.local_hub import COMMIT, local_hub  # noqa: F401 (a fixture)

pytestmark = pytest.mark.slow

CLASSES = ("cat", "dog", "eel")
PP = (
    "decode(precise=True)|resize_small(40, 'pillow_bicubic')|central_crop(32)|"
    "value_norm((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))"
)
PINNED = f"hf:a/b@{COMMIT}"


@pytest.fixture
def workspace(local_hub, tmp_path, monkeypatch):  # noqa: F811
    """A directory with images in three folders, and a hub with a classifier of them, `a/b`."""
    model = tiny.model(image_size=32, patch_size=8, classes=3)
    model.class_names = CLASSES
    model.input_normalization = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    model.resizing = Resizing((32, 32), 40, "pillow_bicubic")
    folder = pathlib.Path(save_checkpoint(model, tmp_path / "model", format="huggingface"))
    local_hub.repositories["a/b"] = {path.name: path.read_bytes() for path in folder.iterdir()}
    example_images.folder(tmp_path / "photos", CLASSES, count=5)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))  # of processes that a program starts
    return tmp_path


def run(name, *arguments):
    code, output = programs.run(name, *arguments)
    assert code == 0, output
    return output


def test_weights_flag_alone_starts_a_run(workspace):
    """Variant, weights, size and normalization are those of the checkpoint; no warning asks to correct them."""
    recipe = ["--adapt=lora", "--config.total_steps=1", "--config.data.batch_size=4", "--config.evaluators=()"]
    output = run("train.main", "folder:photos", "--model=hf:a/b", "--workdir=run", *recipe)
    assert "WARNING" not in output and "The weights expect" not in output
    config = json.loads((workspace / "run" / "config.json").read_text())
    data, model = config["recipe"]["data"], config["recipe"]["model"]
    values = PP.rpartition("|")[2]
    assert data["pp_train"] == f"decode|inception_crop(32, 50, antialias=True)|flip_lr|{values}"
    assert data["pp_eval"] == config["preprocess"] == f"decode|resize(32, antialias=True)|{values}"
    assert (model["weights"], model["image_size"]) == ("hf:a/b", 32)
    assert config["architecture"]["arguments"]["hidden_size"] == 16
    assert config["weights"] == PINNED
    assert keras_vit.open_predictor("run").card.weights == PINNED


def test_training_pixels_are_normalized_like_the_pixels_of_the_user(workspace, caplog):
    caplog.set_level(logging.INFO, logger="absl")
    pp = "decode|resize(32, antialias=True)|value_range(-1, 1)"
    choices = Choices("folder:photos", model="hf:a/b", overrides={"adapt": "lora", "data.pp_eval": pp})
    data = recipe_of(choices, workdir="run").data
    assert data.pp_train == "decode|inception_crop(32, 50, antialias=True)|flip_lr|value_range(-1, 1)"
    assert data.pp_eval == pp
    (line,) = [text for text in caplog.messages if text.startswith("augmentation:")]
    assert not line.endswith("(given)")


def test_weights_flag_replaces_the_weights_of_a_recipe(workspace):
    output = run("train.plan", "folder:photos", "--weights=hf:a/b", "--model=ViT_S16", "--image_size=32", "--json")
    assert json.loads(output[output.index("{") :])["image_size"] == 32


def test_programs_for_trained_models_accept_hub_names(workspace):
    card = keras_vit.open_predictor("hf:a/b").card
    assert (card.preprocess, card.class_names, card.weights) == (PP, CLASSES, PINNED)
    photo = next((workspace / "photos" / "cat").iterdir())
    assert "cat" in run("train.predict", "--model=hf:a/b", photo)
    run("export.convert_checkpoint", "hf:a/b", "model.keras")
    assert dataclasses.replace(keras_vit.open_predictor("model.keras").card, weights="").preprocess == PP
    exporter = programs.load("export.main")
    exporter.flags.FLAGS(["export", "--model=hf:a/b", "--output=served"])
    exported = exporter.trained_model.open_model().card
    assert (exported.preprocess, exported.weights) == (PP, PINNED)
