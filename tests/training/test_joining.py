"""Workers wait for each other for a limited time."""

import contextlib
import json
import queue
import socket
import socketserver
import threading
import time

import pytest

from keras_vit.runs.errors import Interrupted
from keras_vit.training import distribute, joining


def test_step_beyond_the_time_limit_ends_the_process(monkeypatch, caplog):
    codes = queue.Queue()
    monkeypatch.setattr("os._exit", codes.put)
    with joining.limited(40, seconds=60):
        pass
    with joining.limited(40, seconds=0.01):
        assert codes.get(timeout=60) == 75
    assert codes.empty() and caplog.text.count("step 41") == 1


@pytest.mark.parametrize("kinds", [("worker", "worker"), ("chief", "worker")])
@pytest.mark.parametrize("own", [0, 1])
def test_workers_wait_for_each_other(own, kinds, monkeypatch, caplog):
    """The missing worker is named once a minute. When all have connected, no worker listens."""
    monkeypatch.setattr(joining, "FIRST", 0.02)
    monkeypatch.setattr(joining, "EVERY", 60.0)
    monkeypatch.setattr(joining, "_PAUSE", 0.01)
    (late, port), own_port = config(monkeypatch, own, kinds)

    def come():
        while f"Not reached: {late} at localhost:{port} (Connection refused)" not in caplog.text:
            time.sleep(0.01)
        time.sleep(0.05)
        came.append(late)
        joining.meet(distribute.check_tf_config()[0], late)

    came = []
    other = threading.Thread(target=come)
    other.start()
    with joining.joining():
        assert came == [late], "it did not wait"
        other.join(60)
        assert not other.is_alive()
        for number in (port, own_port):
            joining._listen(number).close()
    assert caplog.text.count(f"Not reached: {late} at") == 1


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n", b"\x00\x00\x06\x04" + b"\xff" * 300, b"own"])
def test_a_listener_of_another_job_is_not_a_worker(answer, monkeypatch):
    monkeypatch.setattr(joining, "LIMIT", 0.05)
    monkeypatch.setattr(joining, "_PAUSE", 0.01)
    (name, port), _ = config(monkeypatch, own=0)

    class Answers(socketserver.BaseRequestHandler):
        def handle(self):
            message = self.request.recv(1000)
            self.request.sendall(message if answer == b"own" else answer)

    with socketserver.ThreadingTCPServer(("localhost", port), Answers) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        with pytest.raises(Interrupted, match=f"{name} at localhost:{port} .*(does not take part|reset)"):
            joining.joining().__enter__()
        server.shutdown()


def test_workers_of_two_jobs_do_not_connect(monkeypatch):
    monkeypatch.setattr(joining, "LIMIT", 0.05)
    monkeypatch.setattr(joining, "_PAUSE", 0.01)
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    (name, port), _ = config(monkeypatch, own=0)
    with joining._Listener(port, f"another {name}"), pytest.raises(Interrupted, match=f"{name} .*does not take part"):
        joining.joining().__enter__()


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


def test_missing_worker_ends_the_others(monkeypatch):
    monkeypatch.setattr(joining, "LIMIT", 0.05)
    monkeypatch.setattr(joining, "_PAUSE", 0.01)
    config(monkeypatch, own=0)
    with (
        pytest.raises(Interrupted, match="did not start within 0:00: worker 1 at localhost") as error,
        joining.joining(),
    ):
        pytest.fail("it did not wait")
    assert error.value.exit_code == 75


def test_port_in_use_is_reported(monkeypatch):
    _, port = config(monkeypatch, own=0)
    with socket.create_server(("", port)), pytest.raises(Interrupted, match=rf"TF_CONFIG.*Received: {port}"):
        joining.joining().__enter__()


def test_single_worker_does_not_wait(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["localhost:1"]}, "task": {"type": "worker", "index": 0}}')
    with joining.joining():
        pass


def test_a_worker_listens_for_ipv4_and_ipv6():
    hosts = ["127.0.0.1"]
    with contextlib.suppress(OSError):  # a machine without IPv6
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        hosts.append("[::1]")
    with joining._listen(0) as server:
        for host in hosts:
            socket.create_connection(joining._split(f"{host}:{server.getsockname()[1]}"), timeout=60).close()
