"""`export.main` to ONNX and OpenVINO."""

import importlib.util
import json

import pytest

from keras_vit.inference import model_card
from keras_vit.inference.opening import open_artifact
from tests import selection, tiny
from tests.made_once import made_once
from tests.programs import call


@pytest.fixture(scope="module", params=["onnx", "openvino"])
def interchange_file(request, run, tmp_path_factory):
    return exported(request.param, run, tmp_path_factory)


def exported(format, run, tmp_path_factory):
    for package in {"onnx": ("tf2onnx", "onnxruntime"), "openvino": ("openvino",)}[format]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'keras-vision-transformers[{format}]'")

    def make(folder):
        arguments = (f"--model={run}", f"--output={folder}", "--num_images=20")
        assert call("export.main", f"--format={format}", *arguments) == 0

    folder = made_once(tmp_path_factory, f"digits_{format}", make)
    return folder / ("model.onnx" if format == "onnx" else "model.xml")


def evaluate(capsys, *arguments):
    capsys.readouterr()
    assert call("train.evaluate", "--json", *arguments) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_interchange_files_measure_as_the_model(run, interchange_file, tmp_path, capsys):
    expected = evaluate(capsys, f"--model={run}")
    result = evaluate(capsys, f"--model={interchange_file}")
    assert result["accuracy"] == expected["accuracy"]
    assert result["loss"] == pytest.approx(expected["loss"], rel=1e-4)  # float32 in another order
    assert call("export.verify", f"--model={run}", f"--artifact={interchange_file}", "--num_images=40") == 0
    tiny.write_digits_run(tmp_path / "other", seed=1)
    other = f"--model={tmp_path / 'other'}"
    assert call("export.verify", other, f"--artifact={interchange_file}", "--num_images=40") == 1
    assert capsys.readouterr().out.endswith("differs\n")


@pytest.mark.slow
@pytest.mark.parametrize("format", selection.cases(["onnx", "openvino"], ["onnx"], selection.EXHAUSTIVE))
def test_benchmark_measures_interchange_files(format, run, tmp_path_factory, capfd):
    interchange_file = exported(format, run, tmp_path_factory)
    arguments = (f"--artifacts={interchange_file}", "--batch_sizes=2", "--calls=4", "--threads=1", "--json")
    assert call("export.benchmark", *arguments) == 0
    (row,) = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    assert (row["kind"], row["precision"]) == (open_artifact(str(interchange_file)).kind, "float32")
    assert row["bytes"] == model_card.size_of(str(interchange_file)) > 10_000
    assert 0 < row["p50_ms"] <= row["p99_ms"]
