"""Workers that wait for other workers, or make other workers wait, report it."""

import contextlib
import json
import queue
import socket
import threading
import time

import keras
import numpy as np
import pytest

from keras_vit import recipe as recipes
from keras_vit.runs.errors import Interrupted
from keras_vit.training import joining, waiting
from keras_vit.training.run_data import Splits


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(waiting, "_TICK", 0.01)
    monkeypatch.setattr(waiting, "EVERY", 0.05)


@pytest.fixture
def ended(monkeypatch):
    """Queue of the exit codes with which a watch ends the process."""
    codes = queue.Queue()
    monkeypatch.setattr("os._exit", codes.put)
    return codes


@pytest.mark.slow
def test_a_watch_reports_and_ends_the_process(ended, caplog):
    watch = waiting.Watch(lambda: "Worker 3 is missing.", first=0.02, limit=0.3)
    with contextlib.closing(watch), watch.waiting():
        assert ended.get(timeout=60) == 75
    assert 2 <= caplog.text.count("WARNING") <= 6  # one every 0.05 s from 0.02 to 0.3 s
    assert caplog.text.count("Worker 3 is missing.") >= 3
    assert "Start all workers again" in caplog.text


@pytest.mark.slow
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


def test_a_process_that_waits_for_its_data_reports_it(monkeypatch, caplog):
    """For more than half of a minute; the next minute is counted anew."""
    monkeypatch.setattr(waiting, "EVERY", 60.0)
    watch = waiting.Watch(str, first=60, limit=60, enabled=False)
    for starved, reported in ((30, ""), (31, "waited for its data in 31 of the last 60 s"), (30, ""), (0, "")):
        caplog.clear()
        watch.note(60 - starved, False)
        assert not caplog.text
        watch.note(starved, True)
        assert (reported in caplog.text) if reported else not caplog.text


@pytest.mark.parametrize("kinds", [("worker", "worker"), ("chief", "worker")])
@pytest.mark.parametrize(("backend", "own"), [("tensorflow", 0), ("tensorflow", 1), ("jax", 0), ("jax", 1)])
def test_workers_wait_for_each_other(backend, own, kinds, monkeypatch, caplog):
    """The one that comes later is named once a minute. On JAX, all but the first go on listening when all have come."""
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    monkeypatch.setattr(joining, "FIRST", 0.02)
    monkeypatch.setattr(joining, "EVERY", 60.0)
    monkeypatch.setattr(joining, "_PAUSE", 0.01)
    (late, port), own_port = config(monkeypatch, own, kinds)

    def come():
        while f"Not reached: {late} at localhost:{port} (Connection refused)" not in caplog.text:
            time.sleep(0.01)
        time.sleep(0.05)
        servers.append(socket.create_server(("localhost", port)))

    servers = []
    threading.Thread(target=come).start()
    with joining.joining():
        assert servers, "it did not wait"
        assert (joining._error(f"localhost:{own_port}") == "") == (backend == "jax" and own == 1)
    servers[0].close()
    assert caplog.text.count("Not reached") == 1


def config(monkeypatch, own, kinds=("worker", "worker")):
    """Set TF_CONFIG of one of two workers; return name and port of the other, and the port of this one."""
    with socket.create_server(("localhost", 0)) as one, socket.create_server(("localhost", 0)) as other:
        ports = [server.getsockname()[1] for server in (one, other)]
    cluster, places = {}, []
    for kind, port in zip(kinds, ports, strict=True):
        places.append({"type": kind, "index": len(cluster.setdefault(kind, []))})
        cluster[kind].append(f"localhost:{port}")
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": places[own]}))
    other = places[1 - own]
    return (f"{other['type']} {other['index']}", ports[1 - own]), ports[own]


def test_a_worker_that_does_not_come_ends_the_others(monkeypatch):
    monkeypatch.setattr(joining, "LIMIT", 0.05)
    monkeypatch.setattr(joining, "_PAUSE", 0.01)
    config(monkeypatch, own=0)
    with (
        pytest.raises(Interrupted, match="did not start within 0:00: worker 1 at localhost") as error,
        joining.joining(),
    ):
        pytest.fail("it did not wait")
    assert error.value.exit_code == 75


def test_a_port_that_another_process_uses(monkeypatch):
    _, port = config(monkeypatch, own=0)
    with socket.create_server(("", port)), pytest.raises(Interrupted, match=rf"TF_CONFIG.*Received: {port}"):
        joining.joining().__enter__()


def test_a_single_worker_waits_for_nobody(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["localhost:1"]}, "task": {"type": "worker", "index": 0}}')
    with joining.joining():
        pass


def test_a_worker_listens_for_ipv4_and_ipv6():
    hosts = ["127.0.0.1"]
    with contextlib.suppress(OSError):  # a machine without IPv6
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        hosts.append("[::1]")
    with joining._listen(0) as server:
        assert {host: joining._error(f"{host}:{server.getsockname()[1]}") for host in hosts} == dict.fromkeys(hosts, "")


class TwoWorkers:
    """A backend whose first worker is this process."""

    num_workers, num_replicas = 2, 2

    def distribute(self, batches_of_worker):
        return batches_of_worker(0, 2)


class OneWorker(TwoWorkers):
    num_workers = 1


@pytest.mark.slow
def test_batches_that_a_worker_has_read_are_counted():
    recipe = recipes.Recipe(total_steps=9, model=recipes.Model(image_size=8))
    recipe.data.source, recipe.data.batch_size = "digits", 4
    recipe.data.pp_train = recipe.data.pp_eval = "value_range(-1, 1)"
    splits, uncounted = Splits(recipe, TwoWorkers()), Splits(recipe, OneWorker())
    batches, same = splits.train_batches(3), uncounted.train_batches(3)
    assert splits.read == 3
    for step, batch, other in zip(range(3, 6), batches.as_numpy_iterator(), same.as_numpy_iterator(), strict=False):
        assert splits.read > step
        np.testing.assert_array_equal(batch["image"], other["image"])
    assert splits.read < 12 and uncounted.read == 3
