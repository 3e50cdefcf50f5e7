"""`export.benchmark`, which measures artifacts side by side."""

import json
import sys

import pytest
from absl.testing import flagsaver

from tests.programs import call, load


@pytest.mark.slow
def test_benchmark_measures_each_batch_size(tflite_file, capfd):
    arguments = (f"--artifacts={tflite_file}", "--batch_sizes=1,3", "--calls=4", "--threads=1", "--json")
    assert call("export.benchmark", *arguments) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    assert [(row["kind"], row["batch_size"]) for row in rows] == [("tflite", 1), ("tflite", 3)]
    for row in rows:
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
        assert row["images_per_second"] > 0
        assert row["peak_memory"] > row["bytes"] > 0


def test_the_model_is_opened_with_the_settings_of_the_flags():
    program = load("export.benchmark")
    given = ["--model=vit.npz", "--preprocess=value_range(-1, 1)", "--image_size=32", "--artifacts=a.tflite"]
    program.flags.FLAGS(["benchmark", *given])
    assert set(given[1:3]) <= set(program.worker_command("vit.npz", True))
    assert not set(given) & set(program.worker_command("a.tflite", False))  # an artifact knows both
    program.flags.FLAGS(["benchmark", "--batch_sizes=1,3", "--threads=2", "--calls=7"])
    command = [sys.executable, "-m", "keras_vit", "benchmark", "--worker=a.tflite"]
    assert program.worker_command("a.tflite", False) == [*command, "--batch_sizes=1,3", "--threads=2", "--calls=7"]


def test_benchmark_lists_missing_measurements(monkeypatch, caplog):
    program = load("export.benchmark")
    monkeypatch.setattr(program, "worker_command", lambda *_: [sys.executable, "-c", "raise SystemExit(2)"])
    with caplog.at_level("ERROR", logger="absl"), flagsaver.flagsaver(artifacts=["broken.tflite"]):
        assert program.main([]) == 1
    assert "broken.tflite could not be measured (exit code 2)" in caplog.text
    with pytest.raises(ValueError, match="Nothing to measure"):
        call("export.benchmark")
