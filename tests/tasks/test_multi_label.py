"""Classification of images with several classes each."""

import json
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.runs.run_directory import read_metrics
from keras_vit.training.validation import Validation
from tests import programs
from tests.training import small_runs

PP = "decode|resize(8)|value_range(-1, 1)"
FIELDS = {
    "task": "multi_label",
    "loss": "sigmoid",
    "label_smoothing": 0.0,
    "data__pp_train": PP,
    "data__pp_eval": PP,
    "total_steps": 4,
    "eval_every": 2,
}
RECIPE = recipes.Recipe(task="multi_label", loss="sigmoid")


def test_score_is_computed_over_all_images_without_padding():
    """Each of the two batches has a precision of 1 for its own images, but their scores are not in one order."""
    batches = [
        {"image": np.zeros((2, 1)), "label": np.array([[1, 0], [0, 1]]), "valid": np.array([1, 1])},
        {"image": np.zeros((2, 1)), "label": np.array([[1, 0], [1, 1]]), "valid": np.array([1, 0])},
    ]
    logits = [np.array([[2.0, 0.0], [1.0, 3.0]]), np.array([[0.5, 1.0], [9.0, -9.0]])]
    sums = [{"loss": 1.0, "accuracy": 0.0, "examples": count} for count in (2.0, 1.0)]
    results = iter([(each, np.zeros([0, 0]), scores) for each, scores in zip(sums, logits, strict=True)])
    backend = types.SimpleNamespace(first_rows=np.asarray, gather=np.asarray)
    task = tasks.bind(RECIPE, outputs=2)
    (line,) = Validation(backend, task, lambda batch: next(results), batches)(0)
    assert line["eval_mean_average_precision"] == pytest.approx(((1 + 2 / 3) / 2 + 1) / 2)
    assert task.score.name == "mean_average_precision"
    with pytest.raises(ValueError, match="loss='softmax'"):
        recipes.check(recipes.replace(RECIPE, {"loss": "softmax"}))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Images whose colors are their classes."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    rows = ["path,labels"]
    for index, chosen in enumerate(rng.random((60, 3)) < 0.5):
        image = np.broadcast_to(255 * chosen, (8, 8, 3)).astype("uint8")
        (folder / f"{index}.png").write_bytes(tf.io.encode_png(image).numpy())
        rows.append(f"{index}.png,{';'.join(np.array(['red', 'green', 'blue'])[chosen])}")
    (folder / "colors.csv").write_text("\n".join(rows))
    return f"manifest:{folder / 'colors.csv'}"


@pytest.mark.slow
def test_a_run_and_its_evaluation_have_the_same_score(source, tmp_path):
    printed = small_runs.train(tmp_path, data__source=source, **FIELDS)
    line = [line for line in read_metrics(str(tmp_path)) if "eval_loss" in line][-1]
    name = "mean_average_precision"
    assert f"test {name} {100 * line[f'eval_{name}']:.2f}%" in printed and "accuracy" not in printed
    shutil.copy(tmp_path / "model.keras", tmp_path / "copied.keras")
    (tmp_path / "config.json").rename(tmp_path / "moved.json")
    card = keras_vit.open_predictor(tmp_path / "copied.keras").card
    (tmp_path / "moved.json").rename(tmp_path / "config.json")
    assert (card.output, card.class_names) == ("sigmoid", ("blue", "green", "red"))  # the model alone states them
    code, output = programs.run("train.evaluate", f"--model={tmp_path}", "--json")
    assert code == 0 and json.loads(output[output.index("{") :])[name] == pytest.approx(line[f"eval_{name}"], abs=1e-6)


def test_softmax_is_refused_at_the_start(source, tmp_path):
    printed = small_runs.train(
        tmp_path, data__source=source, **FIELDS | {"task": "classification", "loss": "softmax"}, expect=2
    )
    assert "multi_label" in printed and "sigmoid" in printed
    assert not (tmp_path / "checkpoints").exists()
