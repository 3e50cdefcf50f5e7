"""The programs on a finished run, from its directory to the artifacts and back through evaluation and prediction."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import inference
from tests import golden_data, selection, tiny
from tests.programs import call

ROOT = pathlib.Path(__file__).parents[2]
PREDICT = """
import sys
sys.argv[0:1] = ["keras-vit", "predict"]
sys.modules["__main__"].__file__ = "keras-vit"
from keras_vit.program import commands
try:
    commands.main()
finally:
    print(*sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", selection.cases(["run", "keras", "saved_model", "tflite"], ["run"]))
def test_predict_gives_the_models_probabilities(kind, run, digits, request, tmp_path, capsys):
    logits, source = digits.logits, digits.source
    exported = {"saved_model": "saved_model", "tflite": "tflite_file"}
    models = {"run": run, "keras": run / "model.keras"}
    model = models[kind] if kind in models else request.getfixturevalue(exported[kind])
    capsys.readouterr()
    tiny.digit_files(tmp_path, source)
    assert call("train.predict", f"--model={model}", "--json", tmp_path / "digit_*.png") == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [os.path.basename(answer["path"]) for answer in answers] == [f"digit_{i}.png" for i in range(3)]
    for answer, row in zip(answers, logits, strict=False):
        expected = tf.nn.softmax(row).numpy()
        order = np.argsort(-expected)[:5]
        assert [p["label"] for p in answer["predictions"]] == [str(i) for i in order]
        np.testing.assert_allclose([p["probability"] for p in answer["predictions"]], expected[order], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tflite", "onnx"])
def test_predict_of_a_file_does_without_tensorflow(kind, request, digits, tmp_path, capsys):
    runtime = {"tflite": "ai_edge_litert", "onnx": "onnxruntime"}[kind]
    if importlib.util.find_spec(runtime) is None:
        pytest.skip(f"{runtime} is not installed")
    model = request.getfixturevalue("tflite_file") if kind == "tflite" else onnx_file(request, tmp_path)
    images = tiny.digit_files(tmp_path, digits.source, 2)
    command = [sys.executable, "-c", PREDICT, f"--model={model}", "--json", *images]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    *answers, imported = done.stdout.splitlines()
    assert {"numpy", runtime} <= set(imported.split())
    assert set(imported.split()).isdisjoint({"tensorflow", "keras", "jax", "torch"})
    assert call("train.predict", f"--model={model}", "--json", *images) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in answers] == [json.loads(line) for line in lines[-2:]]


def onnx_file(request, tmp_path):
    pytest.importorskip("tf2onnx", reason="pip install 'keras-vision-transformers[onnx]'")
    path = tmp_path / "digits.onnx"
    assert call("export.main", f"--model={request.getfixturevalue('run')}", "--num_images=4", f"--output={path}") == 0
    return path


@pytest.mark.slow
def test_predict_needs_classes(digits, tmp_path):
    images = tiny.digit_files(tmp_path, digits.source, 1)
    tiny.model(include_top=False).save(tmp_path / "backbone.keras")
    arguments = (f"--model={tmp_path / 'backbone.keras'}", "--preprocess=value_range(-1, 1)")
    with pytest.raises(ValueError, match="must have classes"):
        call("train.predict", *arguments, *images)


def test_predict_reports_bad_images_and_answers_the_others(run, digits, tmp_path, capsys):
    good = tiny.digit_files(tmp_path, digits.source, 1)[0]
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"not a picture")
    missing = tmp_path / "missing.jpg"
    code = call("train.predict", f"--model={run}", "--json", bad, good, missing)
    answers = {answer["path"]: answer for answer in map(json.loads, capsys.readouterr().out.splitlines())}
    assert code == 1
    assert len(answers[str(good)]["predictions"]) == 5
    assert "not a readable image" in answers[str(bad)]["error"]
    assert "No such file" in answers[str(missing)]["error"]


@pytest.mark.parametrize("name", ["", "missing.jpg"])
def test_wrong_paths_are_refused_before_the_model_is_loaded(name, run, digits, tmp_path, monkeypatch):
    monkeypatch.setattr(inference, "open_predictor", lambda *_, **__: pytest.fail("the model was opened"))
    tiny.digit_files(tmp_path, digits.source, 1)
    with pytest.raises((ValueError, FileNotFoundError), match="Expected image files"):
        call("train.predict", f"--model={run}", tmp_path / name)


def test_predict_takes_photographs_of_any_size_and_writes_a_table(run, capsys):
    paths = [golden_data.path(f"images/{name}") for name in ("tall.jpg", "gray.png")]
    assert call("train.predict", f"--model={run}", "--top_k=3", *paths) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(paths[0])
    assert lines[4] == str(paths[1])
    assert all(line.endswith("%") for line in lines[1:4])
