"""The development server and the client, over real sockets."""

import asyncio
import base64
import concurrent.futures
import contextlib
import http.client
import json
import socket
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import tensorflow as tf

from export.serving import served_model, server
from keras_vit import tf_serving
from keras_vit.inference import masks
from keras_vit.inference.saved_model import SavedModelPredictor
from keras_vit.tf_serving import RequestError
from tests import tiny
from tests.tf_serving import servers

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'keras-vision-transformers[serving]'")


@pytest.fixture(scope="module")
def base(served):
    return served[1]


@pytest.fixture(scope="module")
def running(base):
    with servers.serving(base) as found:
        yield found[1]


@pytest.fixture(scope="module")
def images():
    """Forty different images."""
    return [tiny.encode(image, "PNG") for image in tiny.arrays(40, seed=3)]


@pytest.fixture(scope="module")
def expected(served_artifact, images):
    return served_artifact.run("serving_default", {"image_bytes": images})


@pytest.mark.slow
def test_client_receives_the_predictions_of_the_artifact(running, images, expected):
    with tf_serving.Client(running, "pets") as asking:
        answers = asking.predict([*images[:5], b"bad", *images[5:9]], batch_size=4)
        features = asking.run("features", {"image_bytes": images[:2]})["features"]
    assert [answer.valid for answer in answers] == [True] * 5 + [False] + [True] * 4
    assert answers[5]._replace(error="") == tf_serving.ServedPrediction([], [], False) and "JPEG" in answers[5].error
    for answer, labels, scores in zip(
        answers[:5] + answers[6:], expected["top_k_classes"], expected["top_k_scores"], strict=False
    ):
        assert answer.labels == [label.decode() for label in labels]
        # The size of a batch changes the order of float32 sums.
        np.testing.assert_allclose(answer.scores, scores, atol=1e-5)
    assert features.shape == (2, 16)


def test_status_and_metadata_are_served(running):
    status = servers.get(f"{running}/v1/models/pets")
    assert status["model_version_status"][0]["version"] == "1"
    assert status["model_version_status"][0]["state"] == "AVAILABLE"
    for name in ("versions/1", "labels/stable"):
        assert servers.get(f"{running}/v1/models/pets/{name}") == status
    for path in ("pets/metadata", "pets/versions/1/metadata"):
        definitions = servers.get(f"{running}/v1/models/{path}")["metadata"]["signature_def"]["signature_def"]
        assert definitions["serving_default"]["inputs"]["image_bytes"]["dtype"] == "DT_STRING"
        assert definitions["serve_tensor"]["method_name"] == "tensorflow/serving/predict"


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/models/pets:predict", b"{", 400, "JSON Parse error"),
        ("/v1/models/pets:predict", b'{"instances": [1]}', 400, "must contain strings"),
        ("/v1/models/pets:predict", b'{"signature_name": "x", "instances": [1]}', 400, "'x' not found"),
        ("/v1/models/cats:predict", b'{"instances": ["a"]}', 404, "Servable not found"),
        ("/v1/models/pets/versions/9:predict", b'{"instances": ["a"]}', 404, "pets version 9"),
        ("/v1/models/pets", b"{}", 404, "Malformed request"),
        ("/nothing", b"", 404, "Malformed request"),
        ("/v1/models/pets:predict", b"[" * 100_000, 400, "JSON Parse error"),
        # Each of these ended in a closed connection and a traceback, or meant the default signature.
        ("/v1/models/pets:predict", b'{"instances": ' + b"[" * 900 + b"]" * 900 + b"}", 400, ""),
        ("/v1/models/pets:predict", b'{"signature_name": ["a"], "instances": ["a"]}', 400, "signature_name"),
        ("/v1/models/pets:predict", b'{"signature_name": {}, "instances": ["a"]}', 400, "signature_name"),
        ("/v1/models/pets:predict", b'{"signature_name": 0, "instances": ["a"]}', 400, "signature_name"),
        (f"/v1/models/pets/versions/{'9' * 5000}:predict", b"{}", 404, "Servable not found"),
        ("/v1/models/pets/versions/x", b"", 404, "version x"),
        ("/v1/models/pets/labels/canary", b"", 404, "label canary"),
        ("/v1/models/pets:predict", b"", 405, "POST"),
        ("/v1/models/pets:predict", b'{"instances": [{"img": "a"}]}', 400, "['img']"),
    ],
)
def test_wrong_requests_return_the_status_of_tensorflow_serving(running, images, path, body, status, message):
    if body:
        code, answer = servers.post(running, body, path)
        assert code == status
        assert message in answer["error"]
    else:
        with pytest.raises(urllib.error.HTTPError) as caught:
            servers.get(running + path)
        assert caught.value.code == status
        assert message in json.loads(caught.value.read())["error"]
    assert servers.is_answering(running, images)


def test_reasons_of_unreadable_images_are_returned(running, images):
    """In addition to the outputs of TensorFlow Serving; absent if all images are valid."""
    huge = bytearray(masks.to_png(np.zeros((8, 8, 3), np.uint8)))
    huge[16:24] = b"\0\0\xff\xff" * 2  # width and height
    bad = [b"", b"GIF89a" + bytes(20), b"\0\0\0\x18ftypheic" + bytes(20), b"II*\0", bytes(huge), b"text"]
    for form, outputs in (("instances", "predictions"), ("inputs", "outputs")):
        body = json.dumps({form: [{"b64": base64.b64encode(image).decode()} for image in (images[0], *bad)]})
        code, answer = servers.post(running, body)
        assert code == 200 and answer.keys() == {outputs, "errors"}
        expected = ("", "empty", "GIF", "HEIC", "TIFF", "1,000,000 pixels", "JPEG")
        assert [text in error for text, error in zip(expected, answer["errors"], strict=True)] == [True] * 7
        assert answer["errors"][0] == ""
    with tf_serving.Client(running, "pets") as asking:
        assert "GIF" in asking.predict([images[0], bad[1]])[1].error
    assert servers.post(running, png(images[:1]))[1].keys() == {"predictions"}


@pytest.mark.parametrize("path", ["/", "/healthz", "/metrics", "/v1/models/pets", "/page/predict", "/nothing"])
def test_requests_for_other_host_names_are_refused(base, path):
    """A web page may resolve its own host name to this machine (DNS rebinding) and read the responses."""
    model = servers.loaded(base)

    def rejects(name, host):
        app = server.make_app(model, server.Limits(), host)
        sent = []

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "scheme": "http"}
        scope |= {"server": ("localhost", 80), "headers": [(b"host", name.encode())] if name else []}
        asyncio.run(app(scope, receive, send))
        return sent[0]["status"] == 400 and b"--host" in sent[-1]["body"]

    assert rejects("evil.example", "localhost") and rejects("evil.example:8501", "my.machine")
    for name in ("localhost:8501", "127.0.0.1:80", "192.168.1.9", "[::1]:8501", "gpu-box", "My.Machine:1", ""):
        assert not rejects(name, "my.machine")
    assert not rejects("evil.example", "0.0.0.0") and not rejects("evil.example", "::")


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "x"])
def test_invalid_content_length_is_refused(running, images, length):
    with socket.create_connection(servers.address_of(running), timeout=30) as connection:
        connection.sendall(
            f"POST /v1/models/pets:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()
        )
        assert connection.recv(100).startswith((b"HTTP/1.1 400", b"HTTP/1.1 413"))
    assert servers.is_answering(running, images)


def test_any_error_gets_a_response_and_the_server_continues(base, images, monkeypatch):
    with servers.serving(base) as (_, url):
        for error, status in (
            (KeyError("x"), 500),
            (tf.errors.ResourceExhaustedError(None, None, "too much"), 500),
            (tf.errors.InvalidArgumentError(None, None, "bad shape"), 400),
        ):
            with monkeypatch.context() as patched:
                patched.setattr(SavedModelPredictor, "run", raising(error))
                code, answer = servers.post(url, b'{"instances": ["a"]}')
            assert code == status
            assert str(error.args[-1] if isinstance(error, KeyError) else error.message) in answer["error"]
        assert servers.is_answering(url, images)


def raising(error):
    def call(*_):
        raise error

    return call


def test_too_large_body_is_refused_with_the_limit(base, images):
    with servers.serving(base, body_bytes=100_000) as (_, url):
        code, answer = servers.post(url, b"[" + b" " * 200_000 + b"]")
        assert code == 413
        assert "at most 100000 bytes" in answer["error"]
        code, answer = servers.post(url, b" " * 100_000)
        assert code == 400 and "JSON Parse error" in answer["error"]
        with pytest.raises(RequestError, match="at most 100000 bytes") as caught:
            # A retry would wait for minutes.
            tf_serving.Client(url, "pets", retries=5, backoff=100).run("serve_tensor", {"images": np.ones((99, 99, 9))})
        assert caught.value.status == 413
        chunks = (b" " * 50_000 for _ in range(4))  # without a length
        assert servers.post(url, chunks)[0] == 413
        assert servers.is_answering(url, images)


@pytest.mark.parametrize(
    "body",
    [
        *(b'{"instances": [' + b",".join([value] * 2000) + b"]}" for value in (b"[]", b"0", b'""', b'{"a":0}')),
        *(opening * 1500 + b"0" + closing * 1500 for opening, closing in ((b'{"a":', b"}"), (b"[", b"]"))),
    ],
    ids=["lists", "numbers", "strings", "objects", "nested objects", "nested lists"],
)
def test_json_of_many_values_is_refused_before_it_takes_memory(base, images, body):
    with servers.serving(base, json_values=1000) as (_, url):
        code, answer = servers.post(url, body)
        assert code == 413 and "at most 1000 values" in answer["error"]
        assert servers.is_answering(url, images)


def test_json_may_have_as_many_values_as_stated():
    body = bytearray(b'{"a":[0,0]}')  # an object, a list, and another value after a comma
    assert server._parse_json(body, server.Limits(json_values=3)) == {"a": [0, 0]}
    with pytest.raises(RequestError, match="at most 2 values"):
        server._parse_json(body, server.Limits(json_values=2))


def test_default_limits_match_the_documentation():
    """As docs/reference/server.md states."""
    limits = server.Limits()
    assert (limits.body_bytes, limits.bodies_bytes, limits.json_values) == (64 * 2**20, 256 * 2**20, 2 * 2**20)
    assert (limits.body_seconds, limits.connections, limits.grace_seconds) == (60, 100, 30)


@pytest.mark.parametrize(
    ("host", "family"), [("::1", socket.AF_INET6), ("127.0.0.1", socket.AF_INET), ("localhost", socket.AF_INET)]
)
def test_network_address_family_follows_from_the_host(host, family, monkeypatch):
    opened = []
    monkeypatch.setattr(socket, "create_server", lambda *places, **options: opened.append((places, options)) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        server.RestServer(None, host, 8501)
    ((((address,), options)),) = opened
    assert (address, options["family"]) == ((host, 8501), family)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e308])
def test_pixels_that_are_not_finite_are_refused(running, value):
    """1e308 is valid JSON and infinity in float32. The response was a plain 500, which was not logged."""
    body = {"signature_name": "serve_tensor", "inputs": np.full((1, 16, 16, 3), value).tolist()}
    code, answer = servers.post(running, json.dumps(body).encode())
    assert code == 400
    assert "'images'" in answer["error"] and "finite" in answer["error"]


def test_a_model_that_returns_nan_is_reported(base, images, monkeypatch):
    with servers.serving(base) as (_, url):
        with monkeypatch.context() as patched:
            patched.setattr(SavedModelPredictor, "run", lambda *_: {"probabilities": np.array([[np.nan]])})
            code, answer = servers.post(url, b'{"instances": ["a"]}')
        assert code == 500
        assert "'probabilities'" in answer["error"] and "NaN" in answer["error"]
        assert servers.is_answering(url, images)


def test_responses_are_sent_immediately(base):
    """Without TCP_NODELAY, each response on a kept-alive connection waited 40 ms for an ACK of the client."""
    listening = server.RestServer(servers.loaded(base))
    with listening._socket, socket.create_connection(("localhost", listening.port)):
        accepted, _ = listening._socket.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.slow
def test_concurrent_connections_are_limited(base, images):
    with servers.serving(base, connections=3) as (_, url):
        with servers.slow_bodies(url, 3):
            servers.wait_until(lambda: servers.refused(url) == 503)
        servers.wait_until(lambda: servers.is_answering(url, images))
        with servers.slow_bodies(url, 2):  # the third connection is served
            time.sleep(0.5)
            assert servers.is_answering(url, images)


def test_refusals_are_not_retried(running):
    def ask(model, signature, inputs):
        # A retry would wait for minutes.
        with tf_serving.Client(running, model, retries=5, backoff=100) as asking:
            asking.run(signature, inputs)

    with pytest.raises(RequestError, match="^Servable not found"):
        ask("cats", "serving_default", {"image_bytes": [b"x"]})
    with pytest.raises(RequestError, match=r"must have the shape \[None, 16, 16, 3\]. Received: \[1, 1\]"):
        ask("pets", "serve_tensor", {"images": np.ones((1, 1), np.float32)})


@pytest.mark.slow
def test_thousand_concurrent_requests_get_their_own_predictions(running, images, expected):
    def ask(number):
        index = number % len(images)
        with tf_serving.Client(running, "pets", timeout=120) as asking:
            (answer,) = asking.predict([images[index]])
        return index, answer

    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(ask, range(1000)))
    assert len(answers) == 1000
    for index, answer in answers:
        assert answer.labels == [label.decode() for label in expected["top_k_classes"][index]]
        np.testing.assert_allclose(answer.scores, expected["top_k_scores"][index], atol=1e-5)


def test_a_session_is_closed_when_loading_fails(base, monkeypatch):
    closed = []
    monkeypatch.setattr(tf.compat.v1.Session, "close", lambda self: closed.append(self))
    monkeypatch.setattr(tf.compat.v1.saved_model.loader, "load", raising(tf.errors.DataLossError(None, None, "torn")))
    with pytest.raises(tf.errors.DataLossError):
        SavedModelPredictor(str(base / "1"))
    assert len(closed) == 1


def test_a_missing_extra_is_reported(base, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ImportError, match=r"keras-vision-transformers\[serving\]"):
        server.RestServer(servers.loaded(base))


STATUS = b"GET /v1/models/pets HTTP/1.1\r\nHost: x\r\n\r\n"


def response_of(connection):
    """Status of the response on a socket, and whether the server closes the connection after it."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    response.read()
    return response.status, response.will_close


@pytest.mark.parametrize("target", ["POST {}:predict", "POST {}cats:predict", "GET {}", "GET {}/"])
def test_endless_body_is_read_up_to_a_limit(base, images, target):
    """Whatever the response is: also the body of a refused request was read without a limit."""
    with servers.serving(base, body_bytes=100_000) as (_, url):
        with socket.create_connection(servers.address_of(url), timeout=30) as connection:
            target = target.format("/v1/models/pets")
            connection.sendall(f"{target} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            with pytest.raises(ConnectionError):
                for _ in range(1000):
                    connection.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        assert servers.is_answering(url, images)


@pytest.mark.slow
def test_a_body_must_arrive_in_time(base, images):
    with servers.serving(base, body_seconds=0.2) as (_, url):
        with servers.slow_bodies(url, 2) as connections:
            assert [response_of(connection) for connection in connections] == [(408, True)] * 2
        assert servers.is_answering(url, images)


@pytest.mark.slow
def test_total_size_of_all_bodies_is_limited(base, images):
    """Small requests are processed at the same time."""
    large = b" " * (2 << 20)
    with servers.serving(base, bodies_bytes=5 << 20, body_bytes=4 << 20) as (_, url):

        def is_refused():
            """Whether a third body is refused; the server may refuse one of the first two if it arrives later."""
            with servers.slow_bodies(url, 2, large, length=len(large) + 1):
                time.sleep(0.5)  # the bodies arrive
                return servers.post(url, large)[0] == 503 and servers.is_answering(url, images)

        servers.wait_until(is_refused)
        servers.wait_until(lambda: servers.post(url, large)[0] == 400)  # read, and not JSON


@pytest.mark.slow
def test_requests_of_disconnected_clients_are_not_computed(base, monkeypatch):
    computed, go_on = [], threading.Event()

    def run(*_):
        computed.append(1)
        go_on.wait(60)
        return {"probabilities": np.zeros((1, 5))}

    body = b'{"instances": ["a"], "x": "' + b" " * 1_000_000 + b'"}'  # more than uvicorn reads by itself
    with servers.serving(base) as (_, url), monkeypatch.context() as patched:
        patched.setattr(SavedModelPredictor, "run", run)
        with servers.slow_bodies(url, server.WORKERS, body, len(body)):
            servers.wait_until(lambda: len(computed) == server.WORKERS)
            with servers.slow_bodies(url, 5, body, len(body)):
                time.sleep(0.5)  # the bodies arrive
            time.sleep(0.5)
            go_on.set()
            assert servers.post(url, b'{"instances": ["a"]}')[0] == 200
    assert len(computed) == server.WORKERS + 1


def test_longest_idle_connection_is_closed_for_a_new_one(base):
    with servers.serving(base, connections=3) as (_, url), contextlib.ExitStack() as stack:

        def connect():
            connection = socket.create_connection(servers.address_of(url), timeout=30)
            return stack.enter_context(connection)

        def status(connection):
            connection.sendall(STATUS)
            return response_of(connection)[0]

        first, second, third = connect(), connect(), connect()
        assert status(first) == 200
        assert status(connect()) == 200
        assert second.recv(1) == b""  # closed
        assert status(first) == status(third) == 200


def is_refusing(url):
    try:
        socket.create_connection(servers.address_of(url), timeout=30).close()
    except ConnectionRefusedError:
        return True
    return False


def test_keep_alive_request_is_completed_at_shutdown(base, monkeypatch):
    monkeypatch.setattr(server, "_CLOSING_SECONDS", 30)
    running = contextlib.ExitStack()
    _, url = running.enter_context(servers.serving(base))
    with socket.create_connection(servers.address_of(url), timeout=30) as connection:
        connection.sendall(STATUS)
        assert response_of(connection) == (200, False)
        ending = threading.Thread(target=running.close)
        ending.start()
        servers.wait_until(lambda: is_refusing(url))
        connection.sendall(STATUS)
        assert response_of(connection) == (200, True)
        ending.join(60)


@pytest.mark.slow
def test_unfinished_bodies_do_not_delay_shutdown(base):
    with contextlib.ExitStack() as clients, servers.serving(base, grace_seconds=3600) as (_, url):
        clients.enter_context(servers.slow_bodies(url, 10))
        servers.get(f"{url}/v1/models/pets")  # their heads have arrived, too


def png(images):
    return json.dumps({"instances": [{"b64": base64.b64encode(image).decode()} for image in images]}).encode()


def test_pixels_of_a_request_are_limited(base, monkeypatch):
    """A single image has the bound of the model. Images that are not decoded do not count."""
    images = [tiny.encode(np.zeros((16, 16, 3), np.uint8), "PNG")] * 3
    huge = bytearray(images[0])
    huge[16:24] = b"\0\0\xff\xff" * 2  # width and height
    with servers.serving(base) as (_, url), monkeypatch.context() as patched:
        patched.setattr(served_model, "MAX_PIXELS", 2 * 16 * 16)
        assert servers.post(url, png(images[:2]))[0] == 200
        code, answer = servers.post(url, png(images[:3]))
        assert code == 413 and "512 pixels" in answer["error"] and "3 images with 768 pixels" in answer["error"]
        assert servers.post(url, png([*images[:2], bytes(huge), b"bad", b"\xff\xd8\xff bad"]))[0] == 200
        patched.setattr(served_model, "MAX_PIXELS", 1)
        assert servers.post(url, png(images[:1]))[0] == 200
        patched.setattr(served_model, "MAX_IMAGES", 4)
        code, answer = servers.post(url, png([b"bad"] * 5))
        assert code == 413 and "4 images" in answer["error"]


@pytest.mark.slow
def test_large_requests_are_computed_one_at_a_time(base, images, monkeypatch):
    running, at_a_time = [], []

    def run(*_):
        running.append(1)
        time.sleep(0.1)
        at_a_time.append(len(running))
        running.pop()
        return {"probabilities": np.zeros((1, 5))}

    with servers.serving(base) as (_, url), concurrent.futures.ThreadPoolExecutor(4) as pool:
        monkeypatch.setattr(SavedModelPredictor, "run", run)
        monkeypatch.setattr(served_model, "_LARGE_PIXELS", 100)
        assert [code for code, _ in pool.map(lambda _: servers.post(url, png(images[:1])), range(4))] == [200] * 4
    assert at_a_time == [1] * 4
