"""Figures of a measurement."""

import io
import subprocess
import sys
import types
from unittest import mock

import numpy as np
import pytest

from export import latency
from tests import tiny

CHILD = """
import resource
from export import latency
print(latency.peak_memory(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a new program what its parent held")
def test_memory_of_the_process_that_started_the_measurement_is_not_counted():
    ballast = np.ones(1_500_000_000, np.uint8)
    done = subprocess.run([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True, check=True)
    own, handed_on = map(int, done.stdout.split())
    assert 50_000_000 < own < ballast.nbytes <= handed_on


def test_memory_is_counted_in_kibibytes(monkeypatch):
    status = io.StringIO("VmPeak:\t 9000 kB\nVmHWM:\t  1000 kB\n")
    monkeypatch.setattr(latency, "open", lambda *_, **__: status, raising=False)
    assert latency.peak_memory() == 1_024_000


@pytest.mark.parametrize(("platform", "factor"), [("darwin", 1), ("freebsd", 1024)])
def test_memory_is_measured_without_proc(platform, factor, monkeypatch):
    """macOS returns bytes; other systems return kibibytes."""
    monkeypatch.setattr(latency, "open", mock.Mock(side_effect=FileNotFoundError), raising=False)
    monkeypatch.setattr(latency, "sys", types.SimpleNamespace(platform=platform))
    monkeypatch.setattr(latency.resource, "getrusage", lambda _: types.SimpleNamespace(ru_maxrss=70_000))
    assert latency.peak_memory() == 70_000 * factor


class Clock:
    """A predictor whose first calls take long, and the clock that it is measured with."""

    card = tiny.card(input_dtype="float")

    def __init__(self, seconds):
        self.now, self.left, self.shapes = 0.0, list(seconds), []

    def predict(self, images):
        self.now += self.left.pop(0)
        self.shapes.append(images.shape)

    def perf_counter(self):
        return self.now


def test_figures_are_in_the_units_of_their_columns():
    times = {"p50_ms": 2.0, "p95_ms": 3.5, "p99_ms": 4.25, "images_per_second": 500.0}
    one = {"path": "a", "kind": "tflite", "precision": "float32", "agreement": 0.995, "bytes": 2_500_000, **times}
    rows = [one | {"batch_size": 1, "peak_memory": 81_400_000}]
    rows += [one | {"path": "b", "batch_size": 8, "peak_memory": 9e7, "agreement": None, "p50_ms": 9.0, "p95_ms": 9.5}]
    rows += [one | {"path": "c", "batch_size": 8, "peak_memory": 9e7, "agreement": None, "p50_ms": 8.0, "p95_ms": 9.9}]
    head, first, second, _ = latency.table(rows).splitlines()
    assert first.split() == ["tflite", "float32", "99.50%", "2.5", "1", "2.00", "3.50", "4.25", "500.0", "81"]
    assert second.split() == ["tflite", "float32", "2.5", "8", "9.00", "9.50", "4.25", "500.0", "90"]
    assert head.index("batch") + len("batch") == first.index("  1  ") + 3 == second.index("  8  ") + 3
    assert latency.fastest(rows).splitlines() == [
        "Fastest with batch size 1: a (tflite, float32, agreement 99.50%), 2.00 ms.",
        "Fastest with batch size 8: c (tflite, float32), 8.00 ms.",
    ]


def test_the_first_calls_do_not_count(monkeypatch):
    clock = Clock([9.0] * 5 + [1.0, 3.0, 2.0])
    monkeypatch.setattr(latency, "time", types.SimpleNamespace(perf_counter=clock.perf_counter))
    found = latency.measure(clock, batch_size=4, calls=3)
    assert clock.left == [] and set(clock.shapes) == {(4, tiny.SIZE, tiny.SIZE, 3)}
    assert found["p50_ms"] == pytest.approx(2000) and found["images_per_second"] == pytest.approx(4 * 3 / 6)
    assert found["p95_ms"] == pytest.approx(2900) and found["p99_ms"] == pytest.approx(2980)  # between 2 and 3 s
