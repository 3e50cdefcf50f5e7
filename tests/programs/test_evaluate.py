"""`train.evaluate --evaluators` on a run and on its artifacts."""

import hashlib
import json

import numpy as np
import pytest
from absl.testing import flagsaver

from tests.evaluators.synthetic import of_values
from tests.programs import call, load


@pytest.mark.slow
def test_evaluate_prints_the_results_of_a_run(run, digits, capsys):
    """Every example counts once, and the object names the model and the data."""
    assert call("train.evaluate", f"--model={run}", "--json", "--batch_size=50") == 0  # the last of 8 batches is padded
    result, labels = json.loads(capsys.readouterr().out), digits.source.labels()
    predicted = digits.logits.argmax(axis=-1)
    assert result["examples"] == np.sum(result["confusion"]) == 360
    assert result["accuracy"] == np.mean(predicted == labels)
    assert result["per_class"][3] == np.mean(predicted[labels == 3] == 3)
    sha256 = hashlib.sha256((run / "model.keras").read_bytes()).hexdigest()
    origin = {"model": str(run), "model_sha256": sha256, "kind": "keras", "data": "digits", "split": "test"}
    assert {name: result[name] for name in origin} == origin


@pytest.mark.slow
def test_measurements_that_a_file_does_not_support_are_listed(tflite_file, digits, capsys):
    arguments = (f"--model={tflite_file}", "digits", "--split=test[:90]", "--evaluators=classification")
    assert call("train.evaluate", *arguments, "--evaluators=knn(neighbors=5)", "--json") == 1
    results = json.loads(capsys.readouterr().out)
    assert list(results) == ["classification", "knn"] and list(results["knn"]) == ["not_measured"]
    right = digits.logits[:90].argmax(axis=-1) == digits.source.labels()[:90]
    assert results["classification"]["examples"] == 90
    assert results["classification"]["accuracy"] == pytest.approx(right.mean())


@pytest.mark.slow
def test_mistakes_are_found_before_anything_is_measured(run, capsys):
    arguments = ("--evaluators=classification", "--evaluators=knn(source='folder:/nowhere')")
    with pytest.raises(ValueError, match="'knn'.*nowhere"):
        call("train.evaluate", f"--model={run}", *arguments)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("images", [20, 21])
def test_the_twenty_lowest_classes_are_listed(images):
    """Classes without images are left out."""
    accuracies = np.concatenate([np.linspace(1, 0, images), [np.nan]])
    names = [f"class {number}" for number in range(images + 1)]
    title, *lines = load("train.evaluate").per_class({"per_class": accuracies, "confusion": None}, names)
    assert title == "Recall per class"
    assert [line.split() for line in lines[:2]] == [
        ["class", f"{images - 1}", "0.00%"],
        ["class", f"{images - 2}", f"{100 / (images - 1):.2f}%"],
    ]
    assert lines[20:] == (["  (the 20 lowest of 21)"] if images == 21 else [])
    few = {"per_class": np.array([0.5, 1.0]), "confusion": np.array([[1, 1], [0, 2]])}
    lines = load("train.evaluate").per_class(few, ["a", "b"])
    assert lines[0] == "Accuracy per class" and "Confusion (rows: true class, columns: predicted)" in lines


@pytest.mark.parametrize("as_json", [False, True])
def test_evaluate_of_a_regression_model_prints_errors(as_json, monkeypatch, capsys):
    true = np.array([[1.0, 40.0], [2.0, 60.0], [4.0, 50.0]])
    where = of_values(true + [0.25, 5.0], true, ("age", "weight"))
    about = {"path": "ages", "kind": "function", "prepare_for_many": lambda: None}
    vars(where.predictor).update(about)
    vars(where.predictor.card).update({"recipe_data": {}, "sha256": "", "reported_split": "test"})
    program = load("train.evaluate")
    monkeypatch.setattr(program, "open_predictor", lambda *_, **__: where.predictor)
    monkeypatch.setattr(program.evaluators, "split_opener", lambda *_: where.open_split)
    with flagsaver.flagsaver(model="ages", json=as_json, split="all"):
        assert program.main(["evaluate", "made-up"]) == 0
    text = capsys.readouterr().out
    if as_json:
        found = json.loads(text)
        assert found["mae"] == 2.625 and found["per_value"]["mae"] == [0.25, 5.0] and found["data"] == "made-up"
        assert found["true"] == true.tolist() and found["value_names"] == ["age", "weight"]
        return
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["regression", "mae", "2.625"] and "%" not in text
    assert lines[5:] == [
        ["Errors", "per", "value"],
        ["mae", "rmse", "r2"],
        ["age", "0.25", "0.25", "0.9598"],
        ["weight", "5", "5", "0.625"],
    ]
