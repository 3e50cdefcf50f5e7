"""Workers that wait for others, or let them wait, report it."""

import contextlib
import json
import queue
import socket
import time

import keras
import numpy as np
import pytest

from keras_vit import recipe as recipes
from keras_vit.training import waiting
from keras_vit.training.run_data import Splits


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(waiting, "_TICK", 0.01)
    monkeypatch.setattr(waiting, "EVERY", 0.05)


@pytest.fixture
def ended(monkeypatch):
    """Queue of the exit codes with which a watch ends the process."""
    codes = queue.Queue()

    def end(code):
        codes.put(code)
        raise SystemExit  # of the thread

    monkeypatch.setattr("os._exit", end)
    return codes


def test_a_watch_reports_and_ends_the_process(ended, caplog):
    watch = waiting.Watch(lambda: "Worker 3 is missing.", first=0.02, limit=0.3)
    with contextlib.closing(watch), watch.waiting():
        assert ended.get(timeout=60) == 75
    assert caplog.text.count("WARNING") >= 2 and caplog.text.count("Worker 3 is missing.") >= 3
    assert "Start all workers again" in caplog.text


def test_a_watch_ignores_the_time_between_two_waits(ended, caplog):
    watch = waiting.Watch(lambda: "Worker 3 is missing.", first=0.1, limit=0.2)
    with contextlib.closing(watch):
        for _ in range(10):
            with watch.waiting():
                time.sleep(0.01)
        time.sleep(0.3)
    assert ended.empty() and not caplog.text


def test_a_process_that_stood_still_reports_it(monkeypatch, caplog):
    monkeypatch.setattr(waiting, "STOOD_STILL", -1)
    watch = waiting.Watch(str, first=60, limit=60)
    with contextlib.closing(watch):
        time.sleep(0.1)
        assert not caplog.text
        with watch.waiting():
            time.sleep(0.1)
    assert "This process stood still" in caplog.text


@pytest.mark.parametrize(("starved", "reported"), [(0.04, True), (0.02, False)])
def test_a_process_that_waits_for_its_data_reports_it(starved, reported, caplog):
    watch = waiting.Watch(str, first=60, limit=60, enabled=False)
    watch.note(0.06 - starved, False)
    watch.note(starved, True)
    assert ("waited for its data" in caplog.text) == reported


@pytest.mark.parametrize(("backend", "missing"), [("tensorflow", ["chief 0", "worker 1"]), ("jax", ["chief 0"])])
def test_workers_that_do_not_listen_are_named(backend, missing, monkeypatch, caplog):
    """On JAX, only the first worker listens."""
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    monkeypatch.setattr(waiting, "JOINING", (0.02, 60.0))
    with socket.create_server(("localhost", 0)) as one, socket.create_server(("localhost", 0)) as other:
        here, closed = one.getsockname()[1], other.getsockname()[1]
        other.close()
        cluster = {"chief": [f"localhost:{closed}"], "worker": [f"localhost:{here}", f"localhost:{closed}"]}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
        with waiting.joining():
            deadline = time.monotonic() + 60
            while "Not reached" not in caplog.text and time.monotonic() < deadline:
                time.sleep(0.01)
    named = [name for name in ("chief 0", "worker 0", "worker 1") if f"{name} at localhost" in caplog.text]
    assert named == missing


class TwoWorkers:
    """A backend whose first worker is this process."""

    num_workers, num_replicas = 2, 2

    def distribute(self, batches_of_worker):
        return batches_of_worker(0, 2)


class OneWorker(TwoWorkers):
    num_workers = 1


def test_batches_that_a_worker_has_read_are_counted():
    recipe = recipes.Recipe(total_steps=9, model=recipes.Model(image_size=8))
    recipe.data.source, recipe.data.batch_size = "digits", 4
    splits, uncounted = Splits(recipe, TwoWorkers()), Splits(recipe, OneWorker())
    batches, same = splits.train_batches(3), uncounted.train_batches(3)
    assert splits.read == 3
    for step, batch, other in zip(range(3, 6), batches.as_numpy_iterator(), same.as_numpy_iterator(), strict=False):
        assert splits.read > step
        np.testing.assert_array_equal(batch["image"], other["image"])
    assert splits.read < 12 and uncounted.read == 3
