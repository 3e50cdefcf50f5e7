"""The benchmark of the export formats, and the table that it writes."""

import json
import types

import pytest

from tests import tiny
from tests.programs import call


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    tiny.write_digits_run(directory)
    return directory


def test_the_table_contains_the_results(tmp_path):
    folder = tmp_path / "work" / "vit-s-16"
    folder.mkdir(parents=True)
    found = {"examples": 32, "max_difference": 1.5e-6, "mean_difference": 0.0, "top1_agreement": 1.0}
    verified = {
        "saved_model": {"passed": True, **found, "reference_accuracy": 0.96, "accuracy": 0.95},
        "tflite-int8": {"passed": False, "error": "too far", **found, "top1_agreement": 0.5},
        "onnx": {"passed": False, "error": "no such operator"},
    }
    (folder / "verified.json").write_text(json.dumps(verified))
    timed = {"bytes": 88_100_000, "p50_ms": 59.004, "p95_ms": 61.5}
    (folder / "timed.json").write_text(json.dumps({"saved_model": timed, "keras": timed}))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- formats -->\nold\n<!-- /formats -->\nafter\n")
    arguments = (f"--work={tmp_path / 'work'}", "--models=ViT-S/16", "--step=write", f"--output={page}")
    for _ in range(2):  # again gives the same
        assert call("benchmarks.export_formats", *arguments, "--threads=2") == 0
        lines = page.read_text().splitlines()
        assert (lines[0], lines[-1]) == ("before", "after")
        assert "old" not in lines
        assert "| ViT-S/16 | keras | float32 | 88.1 |  |  | 96.00% | 59.00 | 61.50 |" in lines
        assert "| ViT-S/16 | saved_model | float32 | 88.1 | 1.5e-06 | 100.0% | 95.00% | 59.00 | 61.50 |" in lines
        assert "| ViT-S/16 | tflite | int8 | refused | 1.5e-06 | 50.0% |  |  |  |" in lines
        assert "| ViT-S/16 | onnx | float32 |  | cannot be converted |  |  |  |  |" in lines
        assert not any("float16" in line for line in lines)  # not tried
        assert "2 threads" in page.read_text() and "ViT-S/16 32" in page.read_text()
    page.write_text("no marks")
    with pytest.raises(ValueError, match="formats"):
        call("benchmarks.export_formats", *arguments)


@pytest.mark.slow
def test_table_is_generated_from_a_run(run, tmp_path, monkeypatch):
    """With times of another machine: `programs/test_benchmark.py` has the program that measures them."""
    timed, commands = {"bytes": 88_100_000, "p50_ms": 59.0, "p95_ms": 61.5}, []
    page = tmp_path / "page.md"
    page.write_text("<!-- formats -->\n<!-- /formats -->\n")
    common = (f"--work={tmp_path / 'work'}", f"--run={run}", "--models=", "--formats=tflite-float32")

    def benchmark(command, **_):
        commands.append(command)
        return types.SimpleNamespace(stdout=json.dumps(timed))

    for step in ("export", "measure", "write"):
        with monkeypatch.context() as patched:
            if step == "measure":
                patched.setattr("subprocess.run", benchmark)
            assert call("benchmarks.export_formats", *common, f"--step={step}", "--calls=1", f"--output={page}") == 0
    for command, path in zip(commands, (run, tmp_path / "work" / "trained-run" / "tflite-float32.tflite"), strict=True):
        assert command[1:4] == ["-m", "export.benchmark", f"--artifacts={path}"] and path.exists()
    rows = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| trained run")]
    assert [line[1:3] for line in rows] == [["keras", "float32"], ["tflite", "float32"]]
    assert all(float(cell) >= 0 for line in rows for cell in (line[3], line[7]))
    assert rows[0][6] == rows[1][6]  # the accuracy on all 360 images, of the model and of its float32 file
    assert "trained run 360" in page.read_text()
