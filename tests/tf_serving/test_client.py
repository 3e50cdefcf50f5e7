"""The client against servers that are absent, slow, or respond with anything."""

import contextlib
import json
import socket
import threading
import types

import numpy as np
import pytest

from keras_vit import tf_serving
from keras_vit.tf_serving import RequestError

GOOD = {"top_k_classes": [["a", "b"]], "top_k_scores": [[0.75, 0.25]], "valid": [True]}


@contextlib.contextmanager
def responding(*parts, pause=0.0, endless=False):
    """A server that sends its parts, whatever it receives, again and again if it is endless; its URL and its log."""
    ended, heads = threading.Event(), []

    def respond(connection):
        with connection, contextlib.suppress(OSError):
            heads.append(connection.recv(65536).split(b"\r\n")[0])
            while not ended.is_set():
                for part in parts:
                    connection.sendall(part)
                    ended.wait(pause)
                if not endless:
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):  # closed with unread data, the connection would be reset
                        pass
                    return

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threads.append(threading.Thread(target=respond, args=(listening.accept()[0],)))
                threads[-1].start()

    listening = socket.create_server(("localhost", 0))
    threads = [threading.Thread(target=accept)]
    threads[0].start()
    try:
        yield f"http://localhost:{listening.getsockname()[1]}", heads
    finally:
        ended.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


def response(content, status="200 OK", *headers):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


PATHS = ("/v1/models/my%20pets/versions/3", "/proxy/v1/models/pets")


def test_client_returns_predictions():
    outputs = {**GOOD, "top_k_classes": [["é", "b"]], "probabilities": [[0.75, 0.25, 0]]}
    with (
        responding(response({"outputs": outputs})) as (url, heads),
        tf_serving.Client(url, "my pets", version=3) as asking,
    ):
        assert asking.predict([b"x"]) == [tf_serving.ServedPrediction(["é", "b"], [0.75, 0.25], True)]
        tf_serving.Client(f"{url}/proxy/", "pets").predict([b"x"])
    assert heads == [f"POST {path}:predict HTTP/1.1".encode() for path in PATHS]


def test_run_returns_the_arrays_of_any_signature():
    outputs = {"a": [[1, 2]], "b": [True], "c": [0.5, 1], "d": ["x"], "e": [{"b64": "eA=="}], "f": []}
    with responding(response({"outputs": outputs})) as (url, _):
        found = tf_serving.Client(url, "pets").run("any", {"x": np.ones((1, 2))})
    assert {name: value.tolist() for name, value in found.items()} == {**outputs, "e": [b"x"]}
    assert [found[name].dtype.kind for name in "abcd"] == ["i", "b", "f", "O"]
    with responding(response({"outputs": [[1.5]]})) as (url, _):
        assert tf_serving.Client(url, "pets").run("logits", {"x": [1.0]})["logits"].tolist() == [[1.5]]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "JSON"),
        (b"<html>", "JSON"),
        (b"[" * 100_000, "RecursionError"),
        ([1], "TypeError"),
        ({"predictions": []}, "'outputs'"),
        ({"outputs": {"valid": [True]}}, "top_k_classes"),
        ({"outputs": {**GOOD, "top_k_classes": [["a"], ["b", "c"]]}}, "ValueError"),
        ({"outputs": {name: value * 5 for name, value in GOOD.items()}}, "1 images"),
        ({"outputs": {name: [] for name in GOOD}}, "1 images"),
    ],
)
def test_malformed_responses_are_refused(content, named):
    with responding(response(content)) as (url, _), pytest.raises(RequestError, match=named) as caught:
        tf_serving.Client(url, "pets", retries=0).predict([b"x"])
    assert url in str(caught.value)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("400 Bad Request", RequestError),
        ("404 Not Found", RequestError),
        ("502 Bad Gateway", ConnectionError),
        ("503 Service Unavailable", ConnectionError),
        ("504 Gateway Timeout", TimeoutError),
    ],
)
@pytest.mark.parametrize("content", [{"error": "no such thing"}, b"no such thing"])
def test_refused_requests_raise_the_message_of_the_server(status, error, content):
    with responding(response(content, status)) as (url, _), pytest.raises(error, match="^no such thing"):
        tf_serving.Client(url, "pets", retries=0).predict([b"x"])


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "Status 500, without a message."), (b"x" * 1_001, "x" * 1_000)], ids=["none", "long"]
)
def test_refusal_without_a_message_states_the_status(content, message):
    with responding(response(content, "500 Oops")) as (url, _), pytest.raises(RequestError) as caught:
        tf_serving.Client(url, "pets", retries=0).predict([b"x"])
    assert (str(caught.value), caught.value.status) == (message, 500)


def test_client_has_the_documented_defaults():
    asking = tf_serving.Client("http://localhost:8501", "pets")
    assert (asking.timeout, asking.retries, asking.backoff) == (30.0, 4, 0.2)
    assert tf_serving.RequestError("x").status == 400


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts",
    [(), (b"HTTP/1.1 200 OK\r\n", *[b"X"] * 1000), (HEAD + b"\r\n", *[b" "] * 1000)],
    ids=["silence", "a head", "a body"],
)
def test_the_timeout_applies_to_the_whole_response(parts):
    """Each byte started the timeout anew."""
    pause = 0.05 if parts else 0.01
    with (
        responding(*parts, pause=pause, endless=True) as (url, _),
        pytest.raises(TimeoutError, match=r"within 0\.[34]"),
    ):
        tf_serving.Client(url, "pets", timeout=0.4, retries=0).predict([b"x"])


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request"])
def test_endless_responses_are_not_read_to_their_end(status, monkeypatch):
    monkeypatch.setattr(tf_serving, "_MAX_BYTES", 2**17)
    head = f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunks = b"10000\r\n" + b" " * 65536 + b"\r\n"
    with responding(head, *[chunks] * 1000) as (url, _), pytest.raises(RequestError):
        tf_serving.Client(url, "pets", timeout=60, retries=0).predict([b"x"])


@pytest.mark.parametrize("missing", [0, 1])
def test_a_response_may_have_as_many_bytes_as_are_read(missing, monkeypatch):
    content = json.dumps({"outputs": GOOD}).encode()
    monkeypatch.setattr(tf_serving, "_MAX_BYTES", len(content) - missing)
    refused = pytest.raises(RequestError, match="send fewer images")
    with responding(response(content)) as (url, _), refused if missing else contextlib.nullcontext():
        assert tf_serving.Client(url, "pets", retries=0).predict([b"x"])[0].labels == ["a", "b"]


def test_waiting_for_an_absent_server_is_logged_immediately(monkeypatch, caplog):
    pauses = []

    def sleep(seconds):
        assert "Waiting for the server, for about 7 s" in caplog.text  # 1, 2 and 4
        pauses.append(seconds)

    monkeypatch.setattr(tf_serving.time, "sleep", sleep)
    with socket.socket() as closed, caplog.at_level("WARNING", logger="absl"):
        closed.bind(("localhost", 0))  # nothing listens there
        url = f"http://localhost:{closed.getsockname()[1]}"
        with tf_serving.Client(url, "pets", retries=3, backoff=1.0) as asking, pytest.raises(ConnectionError):
            asking.predict([b"x"])
    for attempt, pause in enumerate(pauses):
        assert 0.5 * 2**attempt <= pause <= 1.5 * 2**attempt
    assert len(pauses) == 3
    assert caplog.text.count("Waiting") == 1


@pytest.mark.parametrize("url", ["localhost", "localhost:8500", "ftp://x", "http://", "http://a@b", "file:///etc/x"])
def test_wrong_urls_are_refused(url):
    with pytest.raises(ValueError, match="REST API.*http://localhost:8501"):
        tf_serving.Client(url, "pets")


def test_retries_end_with_the_time_of_the_request(monkeypatch, caplog):
    """An absent server refuses at once. The waits of 4, 8, 16 ... seconds end before 30 seconds are over."""
    clock = types.SimpleNamespace(now=0.0, waits=[])

    def sleep(seconds):
        clock.now += seconds
        clock.waits.append(seconds)

    monkeypatch.setattr(tf_serving, "time", types.SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    with socket.create_server(("localhost", 0)) as closed:
        port = closed.getsockname()[1]
    asking = tf_serving.Client(f"http://localhost:{port}", "pets", timeout=30, retries=20, backoff=4)
    with pytest.raises(ConnectionError):
        asking.predict([b"x"])
    assert clock.now <= 30 and len(clock.waits) >= 1
    assert "for about 30 s" in caplog.text  # all retries would take weeks
    assert all(2 * 2**k <= wait <= 6 * 2**k for k, wait in enumerate(clock.waits))


@pytest.mark.parametrize(("count", "batches"), [(1, [1]), (4, [2, 2]), (5, [2, 2, 1])])
def test_every_image_is_sent_once_and_in_order(count, batches, monkeypatch):
    sent = []

    def run(self, signature, inputs):
        (batch,) = inputs.values()
        sent.append(batch)
        rows = len(batch)
        labels = np.array([[item.decode()] for item in batch], object)
        return {"top_k_classes": labels, "top_k_scores": np.full((rows, 1), 0.5), "valid": np.ones(rows, bool)}

    monkeypatch.setattr(tf_serving.Client, "run", run)
    contents = [str(index).encode() for index in range(count)]
    found = tf_serving.Client("http://localhost:1", "pets").predict(contents, batch_size=2)
    assert [prediction.labels for prediction in found] == [[str(index)] for index in range(count)]
    assert [len(batch) for batch in sent] == batches
