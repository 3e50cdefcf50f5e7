"""`train.evaluate --evaluators` on a run and on its artifacts."""

import contextlib
import hashlib
import io
import json
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest
from absl.testing import flagsaver

from keras_vit import data
from tests import selection, tiny
from tests.evaluators.synthetic import of_values
from tests.on_jax import ON_JAX
from tests.programs import call, load

ROOT = pathlib.Path(__file__).resolve().parents[2]
EVALUATORS = (
    "--evaluators=classification",
    "--evaluators=knn(neighbors=5)",
    "--evaluators=fewshot(shots=2, seeds=2)",
    "--evaluators=linear_probe(solver='ridge')",
)


def evaluate(capsys, *arguments):
    """The exit code and the written files."""
    capsys.readouterr()
    code = call("train.evaluate", *arguments)
    return code, capsys.readouterr().out


@pytest.fixture(scope="module")
def of_the_run(run):
    """What `--json` writes about the run: of all evaluators, and of the plain measurement."""

    def found(*arguments):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            assert call("train.evaluate", f"--model={run}", "--json", *arguments) == 0
        return json.loads(output.getvalue())

    return types.SimpleNamespace(evaluators=found(*EVALUATORS), plain=found())


def digits_as(path, class_names, classes=range(10)):
    """The digits of some classes in a file, under other names or in another order."""
    source = data.open_source("digits", "test")
    chosen = np.isin(source.labels(), list(classes))
    np.savez(path, images=source.images[chosen], labels=source.labels()[chosen], class_names=np.array(class_names))
    return f"--data=npz:{path}"


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--preprocess=decode(1)|resize(16)|value_range(-1, 1)",)])
def test_another_image_size(options, run, digits, capsys, tmp_path):
    """The preprocessing of the run has no size; another one is refused, and the error names the flag."""
    image = tiny.digit_files(tmp_path, digits.source, 1)[0]
    programs = [("train.evaluate", "--json"), ("train.predict", "--json", image)]
    if options:  # the longest, once
        programs.append(("train.visualize", f"--output={tmp_path / 'page'}", f"--images={image}"))
    for name, *arguments in programs:
        arguments += [f"--model={run}", *options]
        if options:
            with pytest.raises(ValueError, match="8 by 8.*16 by 16.*--image_size=16"):
                call(name, *arguments)
        capsys.readouterr()
        assert call(name, *arguments, "--image_size=16") == 0
        if name == "train.evaluate":
            found = json.loads(capsys.readouterr().out)
            assert found["model_sha256"] == hashlib.sha256((run / "model.keras").read_bytes()).hexdigest()


@pytest.mark.slow
def test_evaluators_agree_with_the_plain_measurement(of_the_run):
    results, plain = of_the_run.evaluators, of_the_run.plain
    assert list(results) == ["classification", "knn", "fewshot", "linear_probe"]
    assert results["classification"] == {name: plain[name] for name in results["classification"]}
    origin = {"model", "model_sha256", "kind", "data", "split"}
    assert set(plain) - set(results["classification"]) == origin
    assert np.sum(results["classification"]["confusion"]) == 360
    assert results["knn"]["k5"] > 0.5  # features of random weights still tell digits apart


@selection.EXHAUSTIVE  # `training/test_on_jax.py` has the program on JAX
def test_jax_measures_the_same(run, of_the_run):
    pytest.importorskip("jax")
    arguments = [f"--model={run}", "--json", *EVALUATORS[:2]]
    command = [sys.executable, "-m", "train.evaluate", *arguments]
    done = subprocess.run(command, env=ON_JAX, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    found, expected = json.loads(done.stdout), of_the_run.evaluators
    assert found["knn"]["k5"] == pytest.approx(expected["knn"]["k5"], abs=2 / 360)  # rounding may change a vote
    assert found["classification"]["loss"] == pytest.approx(expected["classification"]["loss"], rel=1e-5)


@pytest.mark.slow
def test_tables(run, capsys):
    arguments = (f"--model={run}", "--evaluators=classification", "--evaluators=knn(neighbors=5)")
    code, text = evaluate(capsys, *arguments)
    assert code == 0
    assert [line.split()[0] for line in text.splitlines()] == [
        *(
            "classification",
            "accuracy_low",
            "accuracy_high",
            "chance",
            "largest_class",
            "balanced_accuracy",
            "macro_f1",
        ),
        *("top5", "loss", "ece", "examples", "knn"),
    ]


@pytest.mark.slow
def test_measurements_that_a_file_does_not_support_are_listed(of_the_run, tflite_file, capsys):
    arguments = (f"--model={tflite_file}", *EVALUATORS[:2])
    code, text = evaluate(capsys, *arguments, "--json")
    results = json.loads(text)
    assert code == 1
    assert results["classification"]["examples"] == 360
    assert list(results["knn"]) == ["not_measured"]
    reason = "this TFLite file returns probabilities only"
    assert results["knn"]["not_measured"].startswith(reason)
    assert results["classification"]["confusion"] == of_the_run.plain["confusion"]
    code, text = evaluate(capsys, *arguments)
    assert code == 1
    assert text.splitlines()[-1].startswith(f"knn             not measured: {reason}")


@pytest.mark.slow
@pytest.mark.parametrize("form", selection.cases(["float32", "uint8"], ["float32"], selection.EXHAUSTIVE))
def test_a_file_with_features_is_measured_as_the_model(form, run, of_the_run, tmp_path, capsys):
    arguments = (f"--output={tmp_path / 'digits.tflite'}", "--features", f"--input={form}", "--num_images=8")
    assert call("export.main", "--format=tflite", f"--model={run}", *arguments) == 0
    expected = of_the_run.evaluators
    code, text = evaluate(capsys, f"--model={tmp_path / 'digits.tflite'}", "--json", *EVALUATORS[1:3])
    results = json.loads(text)
    assert code == 0
    # Sums in another order may change the nearest of equally near neighbors, of one image in 360.
    assert results["knn"]["k5"] == pytest.approx(expected["knn"]["k5"], abs=1 / 360)
    assert results["fewshot"]["2shot"] == pytest.approx(expected["fewshot"]["2shot"], abs=1 / 360)


@pytest.mark.slow
def test_a_saved_model_is_measured_as_the_model(of_the_run, saved_model, capsys):
    expected = of_the_run.evaluators
    code, text = evaluate(capsys, f"--model={saved_model}", "--json", *EVALUATORS)
    results = json.loads(text)
    assert code == 0
    assert results["classification"]["confusion"] == expected["classification"]["confusion"]
    for name in ("knn", "fewshot", "linear_probe"):
        assert results[name] == expected[name]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), pytest.param(("--evaluators=classification",), marks=pytest.mark.slow)])
def test_data_of_other_classes_are_refused(arguments, run, tmp_path, capsys):
    fewer = digits_as(tmp_path / "fewer.npz", ["zero", "one", "two"], range(3))
    with pytest.raises(ValueError, match="must have the model's 10 classes, not 3.*Received: zero, one, two"):
        call("train.evaluate", f"--model={run}", fewer, "--split=test", *arguments)


@pytest.mark.slow
def test_names_decide_which_class_is_meant(run, digits, tmp_path, capsys):
    """A part of the classes in another order, with a class that the model does not have."""
    correct, labels = digits.logits.argmax(axis=-1) == digits.source.labels(), digits.source.labels()
    chosen = np.isin(labels, (3, 5, 7))
    places = {7: 0, 3: 2, 5: 1}
    np.savez(
        tmp_path / "part.npz",
        images=digits.source.images[chosen],
        labels=[places[label] for label in labels[chosen]],
        class_names=["7", "eleven", "3"],
    )
    arguments = (f"--model={run}", f"npz:{tmp_path / 'part.npz'}", "--split=all")
    result = measured(capsys, *arguments)
    assert result["examples"] == 72
    assert result["accuracy"] == pytest.approx(correct[np.isin(labels, (3, 7))].mean())
    assert result["class_examples"] == [0, 0, 0, 36, 0, 0, 0, 36, 0, 0]
    assert call("train.evaluate", *arguments) == 0
    text = capsys.readouterr().out
    rows = text[text.index("Accuracy per class") : text.index("Confusion")].splitlines()[1:]
    assert sorted(row.split()[0] for row in rows if row) == ["3", "7"]  # no rows of classes without images


@pytest.mark.slow
def test_other_names_are_told_and_compared_by_number(run, tmp_path, capsys, caplog):
    named = digits_as(tmp_path / "named.npz", [f"digit {number}" for number in range(10)])
    code, text = evaluate(capsys, f"--model={run}", named, "--split=test", "--json", "--evaluators=classification")
    assert code == 0 and json.loads(text)["classification"]["examples"] == 70
    assert "compared by their numbers" in caplog.text


@pytest.mark.slow
def test_features_may_be_of_any_classes(run, tmp_path, capsys):
    fewer = digits_as(tmp_path / "fewer.npz", ["a", "b", "c"], range(3))
    arguments = (f"--model={run}", fewer, "--split=test", "--json", "--evaluators=knn(neighbors=1)")
    code, text = evaluate(capsys, *arguments)
    assert code == 0 and json.loads(text)["knn"]["k1"] > 0.5


@pytest.mark.slow
def test_mistakes_are_found_before_anything_is_measured(run, tmp_path, capsys):
    for evaluator, message in (
        ("knn(source='folder:/nowhere')", "The evaluator 'knn' cannot run: .*nowhere"),
        (
            "knn(pp='value_range(-1, 1)|resize(12)')",
            r"takes images of the shape \(8, 8, 1\). Received: .*\(12, 12, 1\)",
        ),
        ("subset(classes=(0, 12), source='digits')", "A model of 10 classes has no class 12"),
        ("fewshot(shots=(0,))", "`shots` must be an integer of at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            call("train.evaluate", f"--model={run}", "--evaluators=classification", f"--evaluators={evaluator}")
        assert not capsys.readouterr().out


def measured(capsys, *arguments):
    """What `--json` gives, of a command that must succeed."""
    code, text = evaluate(capsys, "--json", *arguments)
    assert code == 0
    return json.loads(text)


@pytest.mark.slow
def test_evaluate_counts_every_example_once(run, digits, capsys):
    logits, source = digits.logits, digits.source
    result = measured(capsys, f"--model={run}", "--batch_size=50")  # 8 batches, the last with 40 padded rows
    predicted = logits.argmax(axis=-1)
    assert result["examples"] == 360
    assert result["accuracy"] == np.mean(predicted == source.labels())
    assert np.sum(result["confusion"]) == 360
    assert result["per_class"][3] == np.mean(predicted[source.labels() == 3] == 3)


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


@pytest.mark.slow
def test_a_directory_with_one_file_measures_as_the_model(of_the_run, tflite_file, capsys):
    result = measured(capsys, f"--model={tflite_file.parent}")
    assert result["accuracy"] == of_the_run.plain["accuracy"]
    assert result["loss"] == pytest.approx(of_the_run.plain["loss"], rel=1e-4)  # float32 in another order


@pytest.mark.parametrize("as_json", [False, True])
def test_a_model_of_values(as_json, monkeypatch, capsys):
    true = np.array([[1.0, 40.0], [2.0, 60.0], [4.0, 50.0]])
    where = of_values(true + [0.25, 5.0], true, ("age", "weight"))
    about = {"path": "ages", "kind": "function", "prepare_for_many": lambda: None}
    vars(where.predictor).update(about)
    vars(where.predictor.card).update({"recipe_data": {}, "sha256": "", "reported_split": "test"})
    program = load("train.evaluate")
    monkeypatch.setattr(program, "open_predictor", lambda *_, **__: where.predictor)
    monkeypatch.setattr(program.evaluators, "opener", lambda *_: where.open_split)
    with flagsaver.flagsaver(model="ages", json=as_json):
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


@pytest.mark.slow
def test_evaluate_refuses_other_classes(run, tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(tiny.images(1).contents[0])
    with pytest.raises(ValueError, match="must have the model's 10 classes, not 2.*Received: cat, dog"):
        call("train.evaluate", f"--model={run}", f"--data=folder:{tmp_path}", "--split=all")
