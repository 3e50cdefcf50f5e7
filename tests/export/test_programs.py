"""The programs on a finished run, from its directory to the artifacts and back through evaluation and prediction."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.inference import keras_model, latency
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.opening import open_artifact
from keras_vit.tf_serving import warmup
from keras_vit.training.errors import UnreadableInput
from tests import golden_data
from tests import small_classifier as small
from tests.export.runs import write_digits_run
from tests.programs import call


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's directory, its model, and the accuracy of that model on the 360 test digits, worked out here."""
    directory = tmp_path_factory.mktemp("run")
    model = write_digits_run(directory)
    source = data.open_source("digits", "test")
    logits = model.predict(source.images.astype("float32") / 127.5 - 1, verbose=0)
    return directory, model, logits, source


@pytest.fixture(scope="module")
def served(run, tmp_path_factory):
    base = tmp_path_factory.mktemp("served") / "digits"
    assert (
        call("export.saved_model", f"--model={run[0]}", f"--output={base}", "--num_images=20", "--batch_sizes=1,2") == 0
    )
    return base


@pytest.fixture(scope="module")
def tflite_file(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("tflite") / "digits.tflite"
    assert call("export.tflite", f"--model={run[0]}", f"--output={path}", "--num_images=20") == 0
    return path


@pytest.fixture(scope="module", params=["onnx", "openvino"])
def interchange_file(request, run, tmp_path_factory):
    for package in {"onnx": ("tf2onnx", "onnxruntime"), "openvino": ("openvino",)}[request.param]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'keras-vision-transformers[{request.param}]'")
    folder = tmp_path_factory.mktemp(request.param)
    arguments = (f"--model={run[0]}", f"--output={folder}", "--num_images=20")
    assert call(f"export.{request.param}", *arguments) == 0
    return folder / ("model.onnx" if request.param == "onnx" else "model.xml")


def evaluate(capsys, *arguments):
    capsys.readouterr()
    assert call("train.evaluate", "--json", *arguments) == 0
    return json.loads(capsys.readouterr().out)


def test_evaluate_counts_every_example_once(run, capsys):
    directory, _, logits, source = run
    result = evaluate(capsys, f"--model={directory}", "--batch_size=50")  # 8 batches, the last with 40 padded rows
    predicted = logits.argmax(axis=-1)
    assert result["examples"] == 360
    assert result["accuracy"] == np.mean(predicted == source.labels())
    assert np.sum(result["confusion"]) == 360
    assert result["per_class"][3] == np.mean(predicted[source.labels() == 3] == 3)


def test_artifacts_measure_as_the_model(run, served, tflite_file, capsys):
    expected = evaluate(capsys, f"--model={run[0]}")
    for path in (served, tflite_file, tflite_file.parent):
        result = evaluate(capsys, f"--model={path}")
        assert result["accuracy"] == expected["accuracy"]
        assert result["loss"] == pytest.approx(expected["loss"], rel=1e-4)  # float32 in another order
    assert evaluate(capsys, f"--model={served}")["accuracy"] == expected["accuracy"]


def test_interchange_files_measure_as_the_model(run, interchange_file, tmp_path, capsys):
    expected = evaluate(capsys, f"--model={run[0]}")
    result = evaluate(capsys, f"--model={interchange_file}")
    assert result["accuracy"] == expected["accuracy"]
    assert result["loss"] == pytest.approx(expected["loss"], rel=1e-4)  # float32 in another order
    assert call("export.verify", f"--model={run[0]}", f"--artifact={interchange_file}", "--num_images=40") == 0
    write_digits_run(tmp_path / "other", seed=1)
    other = f"--model={tmp_path / 'other'}"
    assert call("export.verify", other, f"--artifact={interchange_file}", "--num_images=40") == 1
    assert capsys.readouterr().out.endswith("differs\n")


@pytest.mark.slow
def test_benchmark_measures_interchange_files(interchange_file, capfd):
    arguments = (f"--artifacts={interchange_file}", "--batch_sizes=2", "--calls=4", "--threads=1", "--json")
    assert call("export.benchmark", *arguments) == 0
    (row,) = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    assert (row["kind"], row["precision"]) == (open_artifact(str(interchange_file)).kind, "float32")
    assert row["bytes"] == latency.size_of(str(interchange_file)) > 10_000
    assert 0 < row["p50_ms"] <= row["p99_ms"]


@pytest.mark.slow
def test_verify_agrees_and_differs(run, served, tflite_file, tmp_path, capsys):
    for path in (served, tflite_file):
        assert call("export.verify", f"--model={run[0]}", f"--artifact={path}", "--num_images=40") == 0
        assert capsys.readouterr().out.endswith("agrees\n")
    write_digits_run(tmp_path / "other", seed=1)
    arguments = (f"--model={tmp_path / 'other'}", f"--artifact={tflite_file}", "--num_images=40")
    assert call("export.verify", "--json", *arguments) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is False
    assert report["examples"] == 40
    assert report["top1_agreement"] < 1
    lenient = ("--max_difference=1", "--min_agreement=0", "--max_accuracy_drop=1")
    assert call("export.verify", *arguments, *lenient) == 0


def test_the_table_names_the_numbers(run, capsys):
    assert call("train.evaluate", f"--model={run[0]}") == 0
    table = capsys.readouterr().out
    for text in (
        "examples",
        "360",
        "top-5 accuracy",
        "loss",
        "calibration error",
        "Accuracy per class",
        "Confusion",
    ):
        assert text in table


def test_evaluate_refuses_other_classes(run, tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(small.images(1).contents[0])
    with pytest.raises(ValueError, match="must have the model's 10 classes.*Received: .* with 2, cat, dog"):
        call("train.evaluate", f"--model={run[0]}", f"--data=folder:{tmp_path}", "--split=all")


def digit_files(tmp_path, source, count=3):
    paths = []
    for index in range(count):
        paths.append(tmp_path / f"digit_{index}.png")
        paths[-1].write_bytes(tf.io.encode_png(source.images[index]).numpy())
    return paths


@pytest.mark.parametrize("kind", ["run", "keras", "served", "tflite"])
def test_predict_gives_the_models_probabilities(kind, run, served, tflite_file, tmp_path, capsys):
    directory, _, logits, source = run
    model = {"run": directory, "keras": directory / "model.keras", "served": served, "tflite": tflite_file}[kind]
    digit_files(tmp_path, source)
    assert call("train.predict", f"--model={model}", "--json", tmp_path / "digit_*.png") == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [os.path.basename(answer["path"]) for answer in answers] == [f"digit_{i}.png" for i in range(3)]
    for answer, row in zip(answers, logits, strict=False):
        expected = tf.nn.softmax(row).numpy()
        order = np.argsort(-expected)[:5]
        assert [p["label"] for p in answer["predictions"]] == [str(i) for i in order]
        np.testing.assert_allclose([p["probability"] for p in answer["predictions"]], expected[order], atol=1e-5)


def test_predict_reports_bad_pictures_and_answers_the_others(run, tmp_path, capsys):
    good = digit_files(tmp_path, run[3], 1)[0]
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"not a picture")
    missing = tmp_path / "missing.jpg"
    code = call("train.predict", f"--model={run[0]}", "--json", bad, good, missing, tmp_path)
    answers = {answer["path"]: answer for answer in map(json.loads, capsys.readouterr().out.splitlines())}
    assert code == 1
    assert len(answers[str(good)]["predictions"]) == 5
    assert "not a readable image" in answers[str(bad)]["error"]
    assert "No such file" in answers[str(missing)]["error"]
    assert "directory" in answers[str(tmp_path)]["error"]


def test_predict_takes_photographs_of_any_size_and_writes_a_table(run, capsys):
    paths = [golden_data.path(f"images/{name}") for name in ("tall.jpg", "gray.png")]
    assert call("train.predict", f"--model={run[0]}", "--top_k=3", *paths) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(paths[0])
    assert lines[4] == str(paths[1])
    assert all(line.endswith("%") for line in lines[1:4])


def test_missing_arguments_are_named():
    with pytest.raises(ValueError, match="--model is missing"):
        call("train.predict", "a.png")
    with pytest.raises(ValueError, match="keras-vit predict"):
        call("train.predict", "--model=x")
    with pytest.raises(ValueError, match="--model.*--output"):
        call("export.saved_model", "--model=x")
    for program in ("export.tflite", "export.onnx", "export.openvino"):
        with pytest.raises(ValueError, match="--model.*--output"):
            call(program, "--output=x")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        call("train.evaluate", "--model=nowhere")


def test_a_second_export_takes_the_next_version(run, served):
    assert call("export.saved_model", f"--model={run[0]}", f"--output={served}", "--version=1") == 1
    assert sorted(os.listdir(served)) == ["1", "deployment"]


@pytest.mark.slow
def test_the_server_finds_its_warm_up_and_configuration(served):
    artifact = open_artifact(str(served))
    replayed = warmup.replay(artifact)
    assert {size for _, size in replayed} == {1, 2}
    assert {name for name, _ in replayed} == set(artifact.signatures)
    batching = (served / "deployment" / "batching.config").read_text()
    assert [f"allowed_batch_sizes: {size}" in batching for size in (1, 2)] == [True] * 2
    assert (served / "1" / "assets.extra" / "model_card.md").read_text().startswith("# Model card")


def test_the_card_tells_where_the_artifact_comes_from(served):
    card = open_artifact(str(served)).card
    assert card.class_names == tuple(str(i) for i in range(10))
    assert card.metrics["eval_accuracy"] == 0.5
    assert card.data["num_train"] == 1437
    assert card.recipe["data"]["source"] == "digits"
    assert len(card.model_sha256) == 64


@pytest.mark.slow
def test_pixels_in(run, tmp_path):
    path = tmp_path / "pixels.tflite"
    assert call("export.tflite", f"--model={run[0]}", f"--output={path}", "--input=uint8", "--num_images=8") == 0
    artifact = open_artifact(str(path))
    _, _, logits, source = run
    answer = artifact.predict(source.images[:4])
    np.testing.assert_allclose(answer, tf.nn.softmax(logits[:4]), atol=1e-5)


@pytest.mark.parametrize(
    ("pp", "shape", "expected"),
    [
        ("value_range(-1, 1)", (8, 8, 1), "decode(1)|resize((8, 8), method='area')|value_range(-1, 1)"),
        ("decode|resize(8)|value_range(-1, 1)", (8, 8, 3), "decode|resize(8)|value_range(-1, 1)"),
        ("resize(8)|value_range(-1, 1)", (8, 8, 3), "decode(3)|resize(8)|value_range(-1, 1)"),
        ("value_range(-1, 1)", (None, None, 3), "decode(3)|value_range(-1, 1)"),
    ],
)
def test_preprocessing_of_arrays_is_completed(pp, shape, expected):
    assert keras_model.complete_preprocess(pp, shape) == expected


def test_completed_preprocessing_leaves_images_of_the_right_size_alone():
    source = data.open_source("digits", "test")
    preprocess = keras_model.complete_preprocess("value_range(-1, 1)", (8, 8, 1))
    prepare = ModelCard((), preprocess, "softmax", (8, 8, 1)).preprocess_function()
    for image in source.images[:20]:
        prepared = prepare(tf.io.encode_png(image)).numpy()
        np.testing.assert_array_equal(prepared, -1 + image.astype(np.float32) / np.float32(255) * 2)


@pytest.mark.slow
def test_benchmark_measures_all_side_by_side(run, served, tflite_file, capfd):
    arguments = (f"--model={run[0]}", f"--artifacts={served},{tflite_file}", "--batch_sizes=1,3", "--calls=4")
    assert call("export.benchmark", *arguments, "--threads=1", "--json") == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    assert [(row["kind"], row["batch_size"]) for row in rows] == [
        (kind, size) for kind in ("keras", "saved_model", "tflite") for size in (1, 3)
    ]
    for row in rows:
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
        assert row["images_per_second"] > 0
        assert row["peak_memory"] > row["bytes"] > 0
    text = latency.table(rows)
    assert len(text.splitlines()) == 7
    assert len({len(line) for line in text.splitlines()}) == 1


@pytest.mark.slow
def test_benchmark_says_what_it_could_not_measure(tmp_path):
    (tmp_path / "broken.tflite").write_bytes(b"no model")
    assert call("export.benchmark", f"--artifacts={tmp_path / 'broken.tflite'}") == 1
    with pytest.raises(ValueError, match="Nothing to measure"):
        call("export.benchmark")


@pytest.mark.slow
def test_without_the_data_set_pictures_must_be_given(tmp_path):
    write_digits_run(tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["recipe"]["data"]["source"] = "folder:/nowhere"
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    arguments = (f"--model={tmp_path / 'run'}", f"--output={tmp_path / 'a.tflite'}")
    with pytest.raises(ValueError, match="--images="):
        call("export.tflite", *arguments)
    images = golden_data.path("images/gray.png").parent
    assert call("export.tflite", *arguments, f"--images={images}/*") == 0


@pytest.mark.slow
@pytest.mark.parametrize("program", ["train.predict", "export.tflite"])
def test_what_a_user_can_mend_is_one_line(program):
    command = [
        sys.executable,
        "-m",
        program,
        "--model=/nowhere",
        *(["a.png"] if "predict" in program else ["--output=a"]),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "There is no model at '/nowhere'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_path_of_the_artifact_is_the_output(run, tmp_path, capsys):
    arguments = (f"--model={run[0]}", f"--output={tmp_path / 'a.tflite'}", "--num_images=8")
    assert call("export.tflite", *arguments) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'a.tflite'}\n"
    assert call("export.tflite", *arguments, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["path"] == str(tmp_path / "a.tflite")
    assert answer["bytes"] == (tmp_path / "a.tflite").stat().st_size
    assert (answer["examples"], answer["top1_agreement"]) == (8, 1.0)


def test_files_that_are_not_part_of_a_run_are_exported(run, tmp_path):
    model = small.model()
    model.save(tmp_path / "model.keras")
    (tmp_path / "labels.txt").write_text("\n".join(small.CLASS_NAMES), encoding="utf-8")
    for index, content in enumerate(small.images(3).contents):
        (tmp_path / f"{index}, pink.png").write_bytes(content)  # a comma in a name is no separator
    arguments = [f"--model={tmp_path / 'model.keras'}", f"--output={tmp_path / 'a.tflite'}"]
    with pytest.raises(ValueError, match="preprocess"):
        call("export.tflite", *arguments)
    arguments += ["--preprocess=value_range(-1, 1)", f"--labels={tmp_path / 'labels.txt'}"]
    with pytest.raises(ValueError, match="--images="):
        call("export.tflite", *arguments)
    arguments += [f"--images={tmp_path}/[01], pink.png", f"--images={tmp_path / '2, pink.png'}"]
    assert call("export.tflite", *arguments) == 0
    assert open_artifact(str(tmp_path / "a.tflite")).class_names == small.CLASS_NAMES
    verify = [argument for argument in arguments if not argument.startswith("--output")]
    assert call("export.verify", *verify, f"--artifact={tmp_path / 'a.tflite'}") == 0


@pytest.mark.parametrize(
    ("recipe", "flag", "is_read"),
    [("error", None, False), ("skip", None, True), ("error", "skip", True), ("skip", "error", False)],
)
def test_unreadable_images_are_treated_as_in_the_recipe(run, tflite_file, tmp_path, recipe, flag, is_read, capsys):
    shutil.copytree(run[0], tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["recipe"]["data"]["on_bad_image"] = recipe
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    digit_files(tmp_path, run[3], 2)
    (tmp_path / "bad.png").write_bytes(b"not an image")
    arguments = [f"--model={tmp_path / 'run'}", f"--artifact={tflite_file}", f"--images={tmp_path}/*.png", "--json"]
    arguments += [f"--on_bad_image={flag}"] if flag else []
    if is_read:
        assert call("export.verify", *arguments) == 0
        assert json.loads(capsys.readouterr().out)["examples"] == 2
    else:
        with pytest.raises(UnreadableInput, match=r"bad\.png") as caught:
            call("export.verify", *arguments)
        assert caught.value.exit_code == 66
