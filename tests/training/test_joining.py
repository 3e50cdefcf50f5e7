"""Workers wait for each other for a limited time."""

import contextlib
import json
import queue
import socket
import threading
import time

import keras
import pytest

from keras_vit.runs.errors import Interrupted
from keras_vit.training import joining


def test_steps_that_do_not_end_end_the_process(monkeypatch, caplog):
    codes = queue.Queue()
    monkeypatch.setattr("os._exit", codes.put)
    with joining.limited(40, seconds=60):
        pass
    with joining.limited(40, seconds=0.01):
        assert codes.get(timeout=60) == 75
    assert codes.empty() and caplog.text.count("step 41") == 1


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
