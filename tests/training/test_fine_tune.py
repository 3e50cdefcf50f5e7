"""`keras_vit.fine_tune` equals the program: the same recipe, the same run, resumed in the same way."""

import json
import logging
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.data import preprocess
from keras_vit.training import budget, run_summary
from keras_vit.training.planning import fitting, rules
from tests import programs
from tests.data import example_images
from tests.programs.test_weights_by_name import PINNED, workspace  # noqa: F401 (a fixture)
from tests.zoo.local_hub import local_hub  # noqa: F401 (a fixture)

pytestmark = pytest.mark.slow

OVERRIDES = {"adapt": "lora", "total_steps": 2, "eval_every": 2, "data.batch_size": 4}
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(autouse=True)
def without_figures(monkeypatch):
    monkeypatch.setattr(run_summary, "draw_figure", lambda *_: None)


def config(directory):
    return json.loads((pathlib.Path(directory) / "config.json").read_text())


def test_fine_tune_equals_the_train_command(workspace, capsys):  # noqa: F811
    run = keras_vit.fine_tune("photos", model="hf:a/b", workdir="python", overrides=OVERRIDES)
    shown = capsys.readouterr()
    assert "test accuracy" in shown.out and "\nmodel: " in shown.err and "adapt=lora" in shown.err
    assert "steps: 2 steps, 0 of them warm-up (given)" in shown.err
    overrides = [f"--config.{name}={value}" for name, value in OVERRIDES.items()]
    code, output = programs.run("train.main", "folder:photos", "--model=hf:a/b", "--workdir=program", *overrides)
    assert code == 0, output
    for name in ("recipe", "data", "preprocess", "architecture", "weights", "output"):
        assert config("python")[name] == config("program")[name]
    assert {path.name for path in (workspace / "python").iterdir()} >= {
        "model.keras",
        "adapter",
        "metrics.jsonl",
        "data.json",
    }
    other = keras_vit.runs.load_run("program")
    for mine, its in zip(run.model.weights, other.model.weights, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-5)
    assert run.results["eval_accuracy"] == other.results["eval_accuracy"]
    assert (run.class_names, run.config["weights"], run.config["recipe"]["adapt"]) == (
        ("cat", "dog", "eel"),
        PINNED,
        "lora",
    )

    # The pixels, from the files to the model, in training and in the predictor
    grey = example_images.encode(np.full((50, 40, 3), 128, np.uint8))
    expected = (128 / 255 - np.array(MEAN)) / np.array(DEVIATION)
    for pp in (run.preprocess, config("python")["recipe"]["data"]["pp_train"].replace("flip_lr|", "")):
        pixels = preprocess.single_image(pp.replace("inception_crop(32, 50,", "resize(32,"))(tf.constant(grey))
        # Antialiasing truncates: where the weights sum to just below 1, a pixel is one level of 255 darker.
        np.testing.assert_allclose(pixels, np.broadcast_to(expected, pixels.shape), atol=1.01 / 255 / min(DEVIATION))
    assert keras_vit.open_predictor("python").card.preprocess == run.preprocess
    np.testing.assert_allclose(run.model.input_normalization, (MEAN, DEVIATION), rtol=1e-5)


def test_repeated_call_keeps_the_plan_of_the_run(workspace, monkeypatch, capsys):  # noqa: F811
    """Steps are measured once, and the choices of the first machine are kept."""
    planned = []

    def fields(*_):
        planned.append(1)
        return rules.of_steps(2, 4, 3)

    monkeypatch.setattr(budget, "fields", fields)
    level, handlers = logging.getLogger("absl").level, list(logging.getLogger("absl").handlers)
    call = {"model": "hf:a/b", "workdir": "run", "time": "5m", "overrides": {"adapt": "lora", "data.batch_size": 4}}
    call["verbose"] = False
    first = keras_vit.fine_tune(workspace / "photos", **call)
    assert (first.config["recipe"]["time"], first.config["recipe"]["total_steps"]) == (300.0, 2)
    monkeypatch.setattr(fitting, "machine", lambda: (1, 1e9, 64))
    again = keras_vit.fine_tune(workspace / "photos", **call)
    assert planned == [1] and again.config == first.config and again.results["eval_accuracy"] >= 0
    with pytest.raises(ValueError, match="optim.learning_rate"):
        keras_vit.fine_tune(
            workspace / "photos", **call | {"overrides": {**call["overrides"], "optim.learning_rate": 1e-5}}
        )
    shown = capsys.readouterr()
    assert not shown.out and "model: " not in shown.err and "step" not in shown.err
    assert (logging.getLogger("absl").level, logging.getLogger("absl").handlers) == (level, handlers)
