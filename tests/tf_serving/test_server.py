"""The development server and the client, over real sockets."""

import concurrent.futures
import contextlib
import json
import os
import shutil
import socket
import sys
import threading
import types
import urllib.error
import urllib.request

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.exporting import warmup
from keras_vit.inference import model_card
from keras_vit.inference.saved_model import SavedModelClassifier
from keras_vit.tf_serving import client, served_model, server
from keras_vit.tf_serving.client import RequestError
from tests import selection, tiny
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


def test_client_gets_the_artifacts_answers(running, images, expected):
    with client.Client(running, "pets") as asking:
        answers = asking.predict([*images[:5], b"bad", *images[5:9]], batch_size=4)
        features = asking.run("features", {"image_bytes": images[:2]})["features"]
    assert [answer.valid for answer in answers] == [True] * 5 + [False] + [True] * 4
    assert answers[5] == client.Prediction([], [], False)
    for answer, labels, scores in zip(
        answers[:5] + answers[6:], expected["top_k_classes"], expected["top_k_scores"], strict=False
    ):
        assert answer.labels == [label.decode() for label in labels]
        # The size of a batch changes the order of float32 sums.
        np.testing.assert_allclose(answer.scores, scores, atol=1e-5)
    assert features.shape == (2, 16)


def test_status_and_metadata(running):
    status = servers.get(f"{running}/v1/models/pets")
    assert status["model_version_status"][0]["version"] == "1"
    assert status["model_version_status"][0]["state"] == "AVAILABLE"
    assert servers.get(f"{running}/v1/models/pets/versions/1") == status
    for path in ("pets/metadata", "pets/versions/1/metadata"):
        definitions = servers.get(f"{running}/v1/models/{path}")["metadata"]["signature_def"]["signature_def"]
        assert definitions["serving_default"]["inputs"]["image_bytes"]["dtype"] == "DT_STRING"
        assert definitions["serve_tensor"]["method_name"] == "tensorflow/serving/predict"


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/models/pets:predict", b"{", 400, "JSON Parse error"),
        ("/v1/models/pets:predict", b'{"instances": [1]}', 400, "must hold strings"),
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
        (f"/v1/models/pets/versions/{'9' * 5000}:predict", b"{}", 404, "version"),
        ("/v1/models/pets/versions/x", b"", 404, "version"),
    ],
)
def test_rest_errors(running, images, path, body, status, message):
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


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "x", "99999999999999999999"])
def test_a_content_length_that_is_no_length(running, images, length):
    with socket.create_connection(servers.address_of(running), timeout=30) as connection:
        connection.sendall(
            f"POST /v1/models/pets:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()
        )
        assert connection.recv(100).startswith((b"HTTP/1.1 400", b"HTTP/1.1 413"))
    assert servers.is_answering(running, images)


def test_any_error_is_answered_and_the_server_goes_on(base, images, monkeypatch):
    with servers.serving(base) as (model, url):
        for error, status in (
            (KeyError("x"), 500),
            (tf.errors.ResourceExhaustedError(None, None, "too much"), 500),
            (tf.errors.InvalidArgumentError(None, None, "bad shape"), 400),
        ):
            with monkeypatch.context() as patched:
                patched.setattr(SavedModelClassifier, "run", raising(error))
                code, answer = servers.post(url, b'{"instances": ["a"]}')
            assert code == status
            assert str(error.args[-1] if isinstance(error, KeyError) else error.message) in answer["error"]
        assert servers.is_answering(url, images)
        assert not model.busy


def raising(error):
    def call(*_):
        raise error

    return call


def test_a_body_that_is_too_large_is_refused_in_so_many_words(base, images):
    with servers.serving(base, body_bytes=100_000) as (_, url):
        code, answer = servers.post(url, b"[" + b" " * 200_000 + b"]")
        assert code == 413
        assert "at most 100000 bytes" in answer["error"]
        with pytest.raises(RequestError, match="at most 100000 bytes") as caught:
            # A retry would wait for minutes.
            client.Client(url, "pets", retries=5, backoff=100).run("serve_tensor", {"images": np.ones((99, 99, 9))})
        assert caught.value.status == 413
        chunks = (b" " * 50_000 for _ in range(4))  # without a length
        assert servers.post(url, chunks)[0] == 413
        assert servers.is_answering(url, images)


@pytest.mark.parametrize("value", [b"[]", b"0", b'""', b'{"a":0}'])
def test_json_of_many_values_is_refused_before_it_takes_memory(base, images, value):
    with servers.serving(base, json_values=1000) as (_, url):
        code, answer = servers.post(url, b'{"instances": [' + b",".join([value] * 2000) + b"]}")
        assert code == 413
        assert "at most 1000 values" in answer["error"]
        assert servers.is_answering(url, images)


def test_bodies_under_way_share_a_budget(base, images):
    with servers.serving(base, buffered_bytes=100_000) as (_, url):
        with servers.slow_bodies(url, 1, sent=b" " * 90_000):
            servers.wait_until(lambda: servers.post(url, b" " * 50_000)[0] == 503)
        servers.wait_until(
            lambda: servers.post(url, b" " * 50_000)[0] == 400
        )  # the memory is free again: the JSON is read
        assert servers.is_answering(url, images)


def test_a_refused_body_holds_no_memory(base):
    """Its bytes counted until it had arrived, so that of bodies that share the memory all were refused."""
    with (
        servers.serving(base, buffered_bytes=100_000, read_seconds=300) as (_, url),
        servers.slow_bodies(url, 2, sent=b" " * 40_000) as (_, second),
    ):
        servers.wait_until(lambda: servers.post(url, b" " * 30_000)[0] == 503)
        second.sendall(b" " * 30_000)
        servers.wait_until(lambda: servers.post(url, b" " * 30_000)[0] == 400)  # the JSON is read


def test_a_body_counts_until_its_thread_ends(base, monkeypatch):
    finish = threading.Event()
    monkeypatch.setattr(SavedModelClassifier, "run", lambda *_: finish.wait(60) and {})
    body = b'{"instances": ["a"]}' + b" " * 60_000
    with servers.serving(base, answer_seconds=0.5, buffered_bytes=100_000) as (_, url):
        try:
            assert [servers.post(url, body)[0] for _ in range(2)] == [504, 503]
        finally:
            finish.set()
        servers.wait_until(lambda: servers.post(url, body)[0] == 200)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e308])
def test_pixels_that_are_not_finite_are_refused(running, value):
    """1e308 is valid JSON and infinity in float32. The answer was a plain 500, which was not logged."""
    body = {"signature_name": "serve_tensor", "inputs": np.full((1, 16, 16, 3), value).tolist()}
    code, answer = servers.post(running, json.dumps(body).encode())
    assert code == 400
    assert "'images'" in answer["error"] and "finite" in answer["error"]


def test_a_model_that_returns_nan_is_named(base, images, monkeypatch):
    with servers.serving(base) as (_, url):
        with monkeypatch.context() as patched:
            patched.setattr(SavedModelClassifier, "run", lambda *_: {"probabilities": np.array([[np.nan]])})
            code, answer = servers.post(url, b'{"instances": ["a"]}')
        assert code == 500
        assert "'probabilities'" in answer["error"] and "NaN" in answer["error"]
        assert servers.is_answering(url, images)


def test_answers_are_sent_at_once(base):
    """Without TCP_NODELAY, each answer on a kept-alive connection waited 40 ms for an ACK of the client."""
    listening = server.RestServer(servers.loaded(base))
    with listening._socket, socket.create_connection(("localhost", listening.port)):
        accepted, _ = listening._socket.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


HEAD = b"POST /v1/models/pets:predict HTTP/1.1\r\nHost: x\r\nX: "
STATUS = b"GET /v1/models/pets HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET", HEAD, STATUS + HEAD], ids=["nothing", "a word", "a head", "the second"])
def test_heads_that_never_end_are_ended(base, images, sent):
    with (
        servers.serving(base, read_seconds=0.5) as (_, url),
        socket.create_connection(servers.address_of(url), timeout=30) as connection,
    ):
        connection.sendall(sent)
        received = b"".join(iter(lambda: connection.recv(4096), b""))  # until the server closes
        assert (b"HTTP/1.1 408" in received) == bool(sent)
        assert (b"HTTP/1.1 200" in received) == sent.startswith(STATUS)
        assert servers.is_answering(url, images)


def test_connections_at_a_time_are_bounded(base, images):
    with servers.serving(base, connections=3) as (_, url):
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(socket.create_connection(servers.address_of(url), timeout=30))
            with pytest.raises(ConnectionError):
                client.Client(url, "pets", retries=0).predict(images[:1])
        servers.wait_until(lambda: servers.is_answering(url, images))


def test_requests_at_a_time_are_bounded(base, images):
    with servers.serving(base, requests=3) as (_, url):
        with servers.slow_bodies(url, 3):
            servers.wait_until(lambda: servers.post(url, b"{}")[0] == 503)
        servers.wait_until(lambda: servers.is_answering(url, images))


def test_slow_clients_hinder_nobody_and_are_told(base, images):
    with servers.serving(base, read_seconds=2.0) as (_, url), contextlib.ExitStack() as stack:
        bodies = stack.enter_context(servers.slow_bodies(url, 10))
        for _ in range(10):  # heads that never end
            connection = stack.enter_context(socket.create_connection(servers.address_of(url), timeout=30))
            connection.sendall(b"POST /v1/models/pets:predict HTTP/1.1\r\nHost: x\r\nX: ")
        assert all(servers.is_answering(url, images) for _ in range(5))
        assert all(connection.recv(100).startswith(b"HTTP/1.1 408") for connection in bodies)


def test_an_answer_that_takes_too_long_is_a_timeout(base, monkeypatch):
    finish = threading.Event()
    monkeypatch.setattr(SavedModelClassifier, "run", lambda *_: finish.wait(60) and {})
    with servers.serving(base, answer_seconds=0.5) as (_, url):
        try:
            assert servers.post(url, b'{"instances": ["a"]}')[0] == 504
            with pytest.raises(TimeoutError):
                client.Client(url, "pets", retries=5, backoff=100).predict([b"x"])
        finally:
            finish.set()


def test_refusals_are_not_retried(running):
    def ask(model, signature, inputs):
        # A retry would wait for minutes.
        with client.Client(running, model, retries=5, backoff=100) as asking:
            asking.run(signature, inputs)

    with pytest.raises(RequestError, match="^Servable not found"):
        ask("cats", "serving_default", {"image_bytes": [b"x"]})
    with pytest.raises(RequestError, match=r"must have the shape \[None, 16, 16, 3\]. Received: \[1, 1\]"):
        ask("pets", "serve_tensor", {"images": np.ones((1, 1), np.float32)})


@pytest.mark.slow
def test_a_thousand_concurrent_requests(running, images, expected):
    def ask(number):
        index = number % len(images)
        with client.Client(running, "pets", timeout=120) as asking:
            (answer,) = asking.predict([images[index]])
        return index, answer

    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(ask, range(1000)))
    assert len(answers) == 1000
    for index, answer in answers:
        assert answer.labels == [label.decode() for label in expected["top_k_classes"][index]]
        np.testing.assert_allclose(answer.scores, expected["top_k_scores"][index], atol=1e-5)


@pytest.mark.slow
def test_a_newer_version_is_taken_up(base, images, tmp_path):
    own = tmp_path / "pets"
    shutil.copytree(base, own)
    with servers.serving(own) as (model, url), client.Client(url, "pets") as asking:
        before = asking.predict(images[:1])
        assert not model.reload()
        shutil.copytree(own / "1", own / ".unfinished")
        assert not model.reload()  # not a version yet
        os.rename(own / ".unfinished", own / "3")
        assert model.reload()
        assert servers.get(f"{url}/v1/models/pets")["model_version_status"][0]["version"] == "3"
        assert asking.predict(images[:1]) == before
        with pytest.raises(RequestError, match="pets version 1"):
            client.Client(url, "pets", version=1).predict(images[:1])
        shutil.rmtree(own / "3")
        assert model.reload()  # taken back by hand
        assert model.version == 1
        shutil.rmtree(own / "1")
        assert not model.reload()
        assert asking.predict(images[:1]) == before


TORN = {
    "variables cut": lambda path: cut(path, "variables/variables.data*"),
    "a bit of variables flipped": lambda path: flip(path, "variables/variables.data*"),
    "index of variables cut": lambda path: cut(path, "variables/variables.index"),
    "no variables": lambda path: shutil.rmtree(path / "variables"),
    "graph empty": lambda path: (path / "saved_model.pb").write_bytes(b""),
    "graph of garbage": lambda path: (path / "saved_model.pb").write_bytes(b"garbage"),
    "graph cut": lambda path: cut(path, "saved_model.pb"),
    "no graph": lambda path: (path / "saved_model.pb").unlink(),
    "card cut": lambda path: cut(path, "assets.extra/model_card.json"),
    "card a list": lambda path: (path / "assets.extra" / "model_card.json").write_text("[]"),
    "nothing": lambda path: [shutil.rmtree(path), path.mkdir()],
    "dangling link": lambda path: [shutil.rmtree(path), path.symlink_to(path / "nowhere")],
    "a file": lambda path: [shutil.rmtree(path), path.write_text("")],
}


def cut(path, pattern):
    (file,) = path.glob(pattern)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def flip(path, pattern):
    (file,) = path.glob(pattern)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.fixture(scope="module")
def torn(base, tmp_path_factory):
    """A served model, in whose directory newer versions may appear: (directory, model)."""
    own = shutil.copytree(base, tmp_path_factory.mktemp("torn") / "pets")
    return own, served_model.ServedModel("pets", str(own))


@pytest.mark.parametrize("tear", TORN.values(), ids=TORN)
def test_a_torn_version_leaves_the_served_one_in_place(torn, tear, monkeypatch):
    own, model = torn
    shutil.copytree(own / "1", own / "2")
    tear(own / "2")
    logged = []
    monkeypatch.setattr(served_model.logging, "error", lambda *arguments: logged.append(arguments))
    for _ in range(3):
        assert not model.reload()
    assert model.version == 1
    assert len(logged) <= 1  # a file or a dangling link is no version
    with model.use("pets") as (_, artifact):
        assert artifact.run("serve_tensor", {"images": np.zeros((1, 16, 16, 3))})["probabilities"].shape == (1, 7)
    leftover = own / "2"
    shutil.rmtree(leftover) if leftover.is_dir() and not leftover.is_symlink() else leftover.unlink()


@pytest.mark.parametrize(
    "tear", selection.cases(TORN, (), lambda name: pytest.mark.slow if name == "graph cut" else selection.EXHAUSTIVE)
)
def test_a_mended_version_is_taken_up(base, tmp_path, tear):
    own = shutil.copytree(base, tmp_path / "pets")
    model = served_model.ServedModel("pets", str(own))
    shutil.copytree(own / "1", own / "2")
    TORN[tear](own / "2")
    assert not model.reload()
    leftover = own / "2"
    shutil.rmtree(leftover) if leftover.is_dir() and not leftover.is_symlink() else leftover.unlink()
    shutil.copytree(own / "1", own / "2")
    assert model.reload()
    assert model.version == 2


def test_warm_up_requests_run_before_a_version_is_served(base, served_artifact, images, tmp_path, monkeypatch):
    own = tmp_path / "pets"
    shutil.copytree(base, own)
    card = served_artifact.card
    copied = types.SimpleNamespace(path=str(own / "1"), card=card, signatures=served_artifact.signatures)
    warmup.write_warmup(copied, "pets", images, [1, 2])
    model_card.write(copied.path, card)
    received = []
    monkeypatch.setattr(SavedModelClassifier, "run", lambda _, *request: received.append(request))
    model = served_model.ServedModel("pets", str(own))
    sizes = [len(inputs["image_bytes"]) for signature, inputs in received if signature == "serving_default"]
    assert sizes == [1, 2]
    shutil.copytree(own / "1", own / "2")
    cut(own / "2", "assets.extra/tf_serving_warmup_requests")
    model_card.write(str(own / "2"), card)
    assert not model.reload()
    assert model.version == 1


def test_a_server_starts_on_the_newest_version_that_can_be_loaded(base, tmp_path):
    own = tmp_path / "pets"
    shutil.copytree(base, own)
    (own / "2").mkdir()
    assert served_model.ServedModel("pets", str(own)).version == 1
    shutil.rmtree(own / "1")
    with pytest.raises(FileNotFoundError, match="Expected a version"):
        served_model.ServedModel("pets", str(own))


def test_a_session_is_closed_when_loading_fails(base, monkeypatch):
    closed = []
    monkeypatch.setattr(tf.compat.v1.Session, "close", lambda self: closed.append(self))
    monkeypatch.setattr(tf.compat.v1.saved_model.loader, "load", raising(tf.errors.DataLossError(None, None, "torn")))
    with pytest.raises(tf.errors.DataLossError):
        SavedModelClassifier(str(base / "1"))
    assert len(closed) == 1


def test_a_missing_extra_is_named(base, monkeypatch):
    model = served_model.ServedModel("pets", str(base))
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ImportError, match=r"keras-vision-transformers\[serving\]"):
        server.RestServer(model)


def test_lists_and_objects_within_each_other_count(base, images):
    """Without a comma, and with one bracket for each."""
    with servers.serving(base, json_values=1000) as (_, url):
        for opening, closing in ((b'{"a":', b"}"), (b"[", b"]")):
            code, answer = servers.post(url, opening * 1500 + b"0" + closing * 1500)
            assert code == 413 and "at most 1000 values" in answer["error"]
        assert servers.is_answering(url, images)


class FakeArtifact:
    """Stands in for a SavedModel that takes no memory."""

    def __init__(self, path):
        self.path, self.signatures, self.is_closed = path, {}, False

    def close(self):
        self.is_closed = True


def test_an_old_version_is_closed_when_its_last_request_is_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(served_model, "SavedModelClassifier", FakeArtifact)
    monkeypatch.setattr(warmup, "replay", lambda artifact: None)
    (tmp_path / "1").mkdir()
    model = served_model.ServedModel("pets", str(tmp_path))
    (tmp_path / "2").mkdir()
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        (_, old), _ = (stack.enter_context(model.use("pets")) for stack in (first, second))
        reloading = threading.Thread(target=model.reload)
        reloading.start()
        servers.wait_until(lambda: model.version == 2)
        with model.use("pets") as (version, new):  # new requests do not wait for the old ones
            assert version == 2 and not new.is_closed
        first.close()
        reloading.join(0.1)
        assert reloading.is_alive() and not old.is_closed  # one request is still under way
    reloading.join(30)
    assert old.is_closed and not new.is_closed and not model.busy
