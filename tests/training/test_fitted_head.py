"""Heads that are fitted to features before the first step, of every kind of labels."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data import preprocess
from keras_vit.evaluators.linear_fit import LinearFit, softmax_loss, stratified_folds
from keras_vit.inference import feature_store
from keras_vit.models.representation import representation
from keras_vit.runs.run_directory import read_metrics
from keras_vit.runs.trained_run import load_run
from keras_vit.training import budget, fitted_head
from tests.training import small_runs, test_regression_runs, test_segmentation_runs

pytestmark = pytest.mark.slow

PP = "value_range(-1, 1)"
ONLY_HEAD = {"optim__ema_momentum": 0, "total_steps": 0, "eval_every": 0, "checkpoint_every": 0, "adapt": "head"}
regression_source, masks_source = test_regression_runs.source, test_segmentation_runs.source


def head(directory):
    return {path: value for path, value in small_runs.final_weights(directory).items() if path.startswith("head/")}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory and the output of a run that only fits its head."""
    directory = tmp_path_factory.mktemp("fitted") / "run"
    return directory, small_runs.train(directory, head_images=400, data__pp_train=PP, **ONLY_HEAD)


def test_the_head_is_the_exact_solution_for_the_features(run):
    directory, output = run
    source, model = data.open_source("digits", "train"), load_run(directory).model
    recipe = json.loads((directory / "config.json").read_text())["recipe"]
    (batch,) = data.train_batches(source, PP, 400, recipe["seed"]).take(
        1
    )  # the first images of the order of the training
    images = preprocess.device_function(PP)(batch["image"])
    features, logits = map(np.asarray, representation(model)(images))
    labels = batch["label"].numpy()
    targets = np.eye(10)[labels] * (1 - recipe["label_smoothing"]) + recipe["label_smoothing"] / 10
    fit = LinearFit(features[None], targets, softmax_loss)
    kernel, bias = fit.kernel_and_bias(fit.solve(fit.choose(stratified_folds(400, labels))[0]))
    expected = features @ kernel + bias
    # The solutions for features that differ by rounding: a gradient of 1e-5, and a curvature of at least the strength.
    np.testing.assert_allclose(logits, expected, atol=0.02 * np.abs(expected).max())
    assert np.mean(logits.argmax(-1) == labels) > 0.6  # random features of 16 numbers
    (line,) = read_metrics(str(directory))
    assert line["step"] == 0 and line["eval_accuracy"] > 0.5
    assert "The head is fitted to the features of 400 images, in" in output
    assert "step 0: test accuracy" in output and output.count("95% confidence interval") == 2
    assert "chance 10.00%" in output and "Compiling and running the first step" not in output


def test_restart_reuses_the_features_and_is_bit_for_bit_equal(run, tmp_path, monkeypatch):
    directory, _ = run
    again = shutil.copytree(directory, tmp_path / "again", ignore=shutil.ignore_patterns("model.keras", "ckpt*"))
    computed, part = [], feature_store.FeatureStore.part

    def counted(store, *arguments):
        found = part(store, *arguments)
        computed.append(store.computed)
        return found

    monkeypatch.setattr(feature_store.FeatureStore, "part", counted)
    small_runs.train(again, head_images=400, data__pp_train=PP, **ONLY_HEAD)
    assert set(computed) == {0}
    small_runs.assert_same_bits(small_runs.final_weights(directory), small_runs.final_weights(again))
    (again / "model.keras").unlink()
    assert "Resuming from the checkpoint of step 0" in small_runs.train(
        again, head_images=400, data__pp_train=PP, **ONLY_HEAD
    )
    small_runs.assert_same_bits(small_runs.final_weights(directory), small_runs.final_weights(again))


def test_training_continues_from_the_fitted_head(run, tmp_path):
    """With a rate of 0, the weights of the last step are those of step 0, which stay the best."""
    fields = {"data__pp_train": PP, "head_images": 400, "optim__learning_rate": 0.0, "optim__ema_momentum": 0}
    small_runs.train(tmp_path / "run", **fields, adapt="head")
    small_runs.assert_same_bits(head(run[0]), head(tmp_path / "run"))
    lines = [line for line in read_metrics(str(tmp_path / "run")) if "eval_accuracy" in line]
    assert [line["step"] for line in lines] == [0, 4, 8, 12] and len({line["eval_loss"] for line in lines}) == 1
    assert list((tmp_path / "run" / "checkpoints" / "best").glob("ckpt-0.*"))


def test_regression_head_is_fitted(regression_source, tmp_path):
    fields = {**test_regression_runs.FIELDS, **ONLY_HEAD, "data__source": regression_source, "head_images": 1_000}
    small_runs.train(tmp_path / "run", **fields)
    (line,) = read_metrics(str(tmp_path / "run"))
    assert line["eval_standardized_mae"] < 0.1  # the labels are functions of the brightness


def test_fitted_segmentation_head_is_better_than_a_trained_head(masks_source, tmp_path):
    fields = {**test_segmentation_runs.FIELDS, "data__source": masks_source, "adapt": "head", **small_runs.QUIET}
    fitted, trained = tmp_path / "fitted", tmp_path / "trained"
    small_runs.train(fitted, **{**fields, **ONLY_HEAD, "head_images": 1_000})
    small_runs.train(trained, **{**fields, "total_steps": 100, "eval_every": 100})
    scores = [read_metrics(str(directory))[-1]["eval_miou"] for directory in (fitted, trained)]
    assert scores[0] > scores[1]


def test_multi_label_head_is_fitted(tmp_path):
    labels = np.random.default_rng(0).integers(0, 2, (60, 2))
    rows = ["path,labels"]
    for index, (bright, red) in enumerate(labels):
        image = np.full((8, 8, 3), 100 + 100 * bright, np.uint8) * np.uint8([1, 1 - red, 1])
        (tmp_path / f"{index}.png").write_bytes(tf.io.encode_png(image).numpy())
        rows.append(
            f"{index}.png,{';'.join(name for name, has in zip(('bright', 'red'), (bright, red), strict=True) if has)}"
        )
    (tmp_path / "list.csv").write_text("\n".join(rows))
    fields = {key: value for key, value in test_regression_runs.FIELDS.items() if key != "task"}
    fields = {**fields, **ONLY_HEAD, "task": "multi_label", "loss": "sigmoid", "head_images": 100}
    small_runs.train(tmp_path / "run", data__source=f"manifest:{tmp_path}/list.csv", **fields)
    assert read_metrics(str(tmp_path / "run"))[0]["eval_mean_average_precision"] > 0.99


def test_head_that_cannot_be_fitted_is_trained(tmp_path, monkeypatch):
    fields = {"head_images": 100, "model__arguments__representation_size": 8}
    output = small_runs.train(tmp_path / "run", **fields)
    assert "not fitted to features: the head has other weights because of representation_size" in output
    recipe = json.loads((tmp_path / "run" / "config.json").read_text())["recipe"]
    assert recipe["head_images"] == 0 and read_metrics(str(tmp_path / "run"))[0]["step"] > 0
    small_runs.train(tmp_path / "run", **fields)  # resumes
    steps = {"total_steps": 6, "eval_every": 3, "checkpoint_every": 3, "optim.schedule.warmup_steps": 0}
    monkeypatch.setattr(fitted_head.rules, "steps", lambda *_: (steps, ""))
    fields |= {**ONLY_HEAD, "head_images": 100}
    small_runs.train(tmp_path / "planned", **fields)
    lines = [line["step"] for line in read_metrics(str(tmp_path / "planned")) if "eval_accuracy" in line]
    assert lines[:2] == [3, 6]
    assert "Resuming from the checkpoint of step 6" in small_runs.train(tmp_path / "planned", **fields)


def test_the_evaluations_of_a_plan_choose_the_best(tmp_path, monkeypatch):
    planned = {"total_steps": 6, "eval_every": 3, "checkpoint_every": 3, "optim.schedule.warmup_steps": 0}
    monkeypatch.setattr(budget, "fields", lambda *_: planned)
    fields = {"data__pp_train": PP, "head_images": 400, "optim__ema_momentum": 0, "adapt": "head", "time": 60.0}
    fields |= dict.fromkeys(name.replace(".", "__") for name in planned)  # the time sets them
    small_runs.train(tmp_path / "run", **fields)
    lines = [line for line in read_metrics(str(tmp_path / "run")) if "eval_accuracy" in line]
    assert [line["step"] for line in lines][:3] == [0, 3, 6]


def test_the_test_images_choose_no_fitted_head(tmp_path):
    fields = {"data__pp_train": PP, "head_images": 400, "optim__learning_rate": 0.0, "optim__ema_momentum": 0}
    fields["adapt"] = "head"
    small_runs.train(tmp_path / "run", **fields, data__eval_split="test", data__test_split="test")
    lines = [line for line in read_metrics(str(tmp_path / "run")) if "eval_accuracy" in line]
    assert [line["step"] for line in lines] == [12]
