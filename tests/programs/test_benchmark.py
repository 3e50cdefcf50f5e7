"""`export.benchmark`, which measures artifacts side by side."""

import json
import sys

import pytest
from absl.testing import flagsaver

from keras_vit.inference import latency
from tests.programs import call, load


@pytest.mark.slow
def test_benchmark_measures_all_side_by_side(run, tflite_file, capfd):
    arguments = (f"--model={run}", f"--artifacts={tflite_file}", "--batch_sizes=1,3", "--calls=4")
    assert call("export.benchmark", *arguments, "--threads=1", "--json") == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    assert [(row["kind"], row["batch_size"]) for row in rows] == [
        (kind, size) for kind in ("keras", "tflite") for size in (1, 3)
    ]
    for row in rows:
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
        assert row["images_per_second"] > 0
        assert row["peak_memory"] > row["bytes"] > 0


def test_the_table():
    row = {"kind": "onnx", "precision": "float32", "bytes": 2_500_000, "peak_memory": 1_234_000_000, "batch_size": 8}
    row |= {"p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 30.0, "images_per_second": 8000.0}
    title, line = latency.table([row]).splitlines()
    assert title.split()[:6] == ["artifact", "precision", "agreement", "MB", "batch", "p50"] and len(title) == len(line)
    assert line.split() == ["onnx", "float32", "2.5", "8", "1.00", "2.00", "30.00", "8000.0", "1234"]


def test_the_fastest_artifact_of_each_batch_size_is_named():
    rows = [
        {
            **{"path": path, "kind": "tflite", "precision": "int8", "batch_size": size, "agreement": known},
            **{"p50_ms": time, "p95_ms": 9 - time},
        }
        for path, size, time, known in (("a", 1, 2.0, 1), ("b", 1, 1.5, 0.995), ("a", 8, 3.0, None), ("b", 8, 3.25, 1))
    ]
    assert latency.fastest(rows).splitlines() == [
        "Fastest with batch size 1: b (tflite, int8, agreement 99.50%), 1.50 ms.",
        "Fastest with batch size 8: a (tflite, int8), 3.00 ms.",
    ]


def test_the_model_is_opened_as_the_flags_say():
    program = load("export.benchmark")
    given = ["--model=vit.npz", "--preprocess=value_range(-1, 1)", "--labels=labels.txt", "--artifacts=a.tflite"]
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
