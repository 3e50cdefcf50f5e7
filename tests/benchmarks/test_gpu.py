"""`benchmarks.gpu` at tiny sizes on the CPU, where TensorFlow cannot be imported."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.gpu import report
from benchmarks.gpu.rows import ROWS
from tests import selection
from tests.on_jax import ON_JAX
from tests.training import small_runs


@pytest.fixture
def environment(tmp_path):
    """JAX on the CPU, without an importable `tensorflow`."""
    pytest.importorskip("jax")
    blocked = tmp_path / "blocked" / "tensorflow"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ModuleNotFoundError('tensorflow is absent', name='tensorflow')\n")
    return {**ON_JAX, "PYTHONPATH": os.pathsep.join([str(blocked.parent), str(small_runs.ROOT)])}


def run(environment, output, *flags):
    command = [sys.executable, "-m", "benchmarks.gpu", "--tiny", f"--output={output}", *flags]
    done = subprocess.run(command, cwd=small_runs.ROOT, env=environment, capture_output=True, text=True, check=False)
    rows = json.loads((output / "gpu.json").read_text())["rows"]
    return done, {row["row"]: row for row in rows}


@selection.EXHAUSTIVE
def test_the_program_runs_without_tensorflow(environment, tmp_path):
    done, rows = run(environment, tmp_path, "--minutes=200")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert max(rows["correctness"]["errors"].values()) < 0.05
    assert len(rows["resume"]["weights"]) == 64
    speed = rows["speed"]
    assert speed["images_per_second"] > 0 and speed["utilization"] is None
    assert set(speed["ms_per_batch"]) == {"1", "2"}
    assert set(speed["ms_with_gradients"]["5"]) == {"plain"}
    assert speed["mae"]["images_per_second"] > 0 and speed["mae"]["batch_size"] == 2
    assert (tmp_path / "gpu.md").read_text() == done.stdout


@pytest.mark.slow
def test_no_row_begins_without_enough_time(environment, tmp_path):
    done, rows = run(environment, tmp_path, "--minutes=0")
    assert done.returncode == 0 and all("skipped" in row for row in rows.values())


@pytest.mark.slow
def test_a_row_keeps_what_it_measured_before_its_time_ended(environment):
    code = """
import subprocess
from benchmarks.gpu import __main__ as program
from benchmarks.gpu.rows import Row

def run(*_, timeout, **options):
    raise subprocess.TimeoutExpired("worker", timeout, output=written)

subprocess.run = run
for written in (b'{"batch_size": 128}\\n{"batch_size": 256}\\n{"batch', b'', None):
    found = program.run(Row("a", "training", ({},)), 60.0, "/tmp")
    print(found.get("batch_size"), found.get("error"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=small_runs.ROOT, env=environment, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["256 None", *["None more than 60 s"] * 2], done.stderr


def test_the_rows_match_the_description_in_the_readme():
    names = [row.name for row in ROWS]
    assert names[:2] == ["correctness", "resume"] and len(set(names)) == len(names)
    assert {"pretraining-mae-ViT-B/16", "training-ViT-B/16-adamw-remat", "training-ViT-S/16-sgd", "attention"} < set(
        names
    )


def test_the_table_lists_failures():
    failed = {"row": "resume", "error": "exit code 1: ValueError: other bits"}
    measured = {"row": "training", "batch_size": 256, "images_per_second": 2345.6, "utilization": 0.35, "seconds": 1.0}
    text = report.markdown([failed, measured])
    assert "| resume |  |  |  |  | failed: exit code 1: ValueError: other bits |" in text
    assert "| training | 256 | 2,346 | 35.0% |" in text
