"""The development server and the client, over real sockets."""

import concurrent.futures
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

from keras_vit.serving import artefacts, client, protocol, rest, rpc, server
from tests.programs import call
from tests.serving import small

grpc = pytest.importorskip("grpc")


@pytest.fixture(scope="module")
def base(served):
    return served[1]


@contextlib.contextmanager
def serving(base):
    """A model behind both servers: (model, REST URL, gRPC address)."""
    model = server.ServedModel("pets", str(base))
    over_rest = server.RestServer(model, ("localhost", 0))
    thread = threading.Thread(target=over_rest.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    over_grpc, port = rpc.start_server(model, 0)
    try:
        yield model, f"http://localhost:{over_rest.server_port}", f"localhost:{port}"
    finally:
        over_grpc.stop(grace=10).wait()
        over_rest.shutdown()
        over_rest.server_close()
        thread.join()


@pytest.fixture(scope="module")
def running(base):
    with serving(base) as addresses:
        yield addresses


@pytest.fixture(scope="module")
def pictures():
    """Forty different pictures and what the artefact says to each."""
    return [small.encode(image, "PNG") for image in small.arrays(40, seed=3)]


@pytest.fixture(scope="module")
def expected(base, pictures):
    artefact = artefacts.open_artefact(str(base))
    return artefact.run("serving_default", {"image_bytes": pictures})


def get(url):
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.loads(response.read())


@pytest.mark.parametrize("transport", [1, 2], ids=["rest", "grpc"])
def test_client_gets_the_artefacts_answers(running, pictures, expected, transport):
    with client.Client(running[transport], "pets") as asking:
        answers = asking.predict([*pictures[:5], b"bad", *pictures[5:9]], batch_size=4)
        features = asking.run("features", {"image_bytes": pictures[:2]})["features"]
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
    url = running[1]
    status = get(f"{url}/v1/models/pets")
    assert status["model_version_status"][0]["version"] == "1"
    assert status["model_version_status"][0]["state"] == "AVAILABLE"
    assert get(f"{url}/v1/models/pets/versions/1") == status
    definitions = get(f"{url}/v1/models/pets/metadata")["metadata"]["signature_def"]["signature_def"]
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
        ("/nothing", None, 404, "Malformed request"),
        ("/v1/models/pets:predict", b"[" * 100_000, 400, "JSON Parse error"),
    ],
)
def test_rest_errors(running, path, body, status, message):
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(running[1] + path, body), timeout=30)
    assert caught.value.code == status
    assert message in json.loads(caught.value.read())["error"]


@pytest.mark.parametrize("transport", [1, 2], ids=["rest", "grpc"])
def test_refusals_are_not_retried(running, transport):
    def ask(model, signature, inputs):
        # A retry would wait for minutes.
        with client.Client(running[transport], model, retries=5, backoff=100) as asking:
            asking.run(signature, inputs)

    with pytest.raises(rest.RequestError, match="Servable not found"):
        ask("cats", "serving_default", {"image_bytes": [b"x"]})
    with pytest.raises(rest.RequestError, match=r"must have the shape \[None, 16, 16, 3\]. Received: \[1, 1\]"):
        ask("pets", "serve_tensor", {"images": np.ones((1, 1), np.float32)})


@pytest.mark.parametrize("transport", [1, 2], ids=["rest", "grpc"])
def test_the_clients_program(running, pictures, expected, transport, tmp_path, capsys):
    for index in range(2):
        (tmp_path / f"{index}.png").write_bytes(pictures[index])
    (tmp_path / "bad.png").write_bytes(b"bad")
    arguments = (f"--url={running[transport]}", "--name=pets", f"{tmp_path}/*.png")
    assert call("export.client", "--json", *arguments) == 1  # one picture cannot be read
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["predictions"][0]["label"] for answer in answers] == [
        labels[0].decode() for labels in expected["top_k_classes"][:2]
    ]
    assert call("export.client", f"--url={running[transport]}", "--name=cats", f"{tmp_path}/0.png") == 1


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("address", ["localhost:{}", "http://localhost:{}"])
def test_an_absent_server_is_retried_with_growing_pauses(address, monkeypatch):
    pauses = []
    monkeypatch.setattr(client.time, "sleep", pauses.append)
    with (
        client.Client(address.format(free_port()), "pets", retries=3, backoff=0.1) as asking,
        pytest.raises(ConnectionError),
    ):
        asking.predict([b"x"])
    for attempt, pause in enumerate(pauses):
        assert 0.05 * 2**attempt <= pause <= 0.15 * 2**attempt
    assert len(pauses) == 3


def test_wrong_urls():
    for url in ("localhost", "localhost/v1", "ftp://x"):
        with pytest.raises(ValueError, match="Expected host:8500"):
            client.Client(url, "pets")


def test_published_stubs_understand_the_server(running, pictures, expected):
    stubs = pytest.importorskip("tensorflow_serving.apis.prediction_service_pb2_grpc")
    metadata_pb2 = pytest.importorskip("tensorflow_serving.apis.get_model_metadata_pb2")
    predict_pb2 = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
    with grpc.insecure_channel(running[2]) as channel:
        stub = stubs.PredictionServiceStub(channel)
        content = protocol.predict_request("pets", "serving_default", {"image_bytes": np.array(pictures[:2], object)})
        response = stub.Predict(predict_pb2.PredictRequest.FromString(content.SerializeToString()), timeout=30)
        assert response.model_spec.version.value == 1
        assert list(response.outputs["top_k_classes"].string_val[:5]) == expected["top_k_classes"][0].tolist()
        request = metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.name = "pets"
        answer = stub.GetModelMetadata(request, timeout=30)
        definitions = metadata_pb2.SignatureDefMap()
        assert answer.metadata["signature_def"].Unpack(definitions)
        assert "serving_default" in definitions.signature_def


def test_a_thousand_concurrent_requests(running, pictures, expected):
    def ask(number):
        index = number % len(pictures)
        with client.Client(running[1 + number % 2], "pets", timeout=120) as asking:
            (answer,) = asking.predict([pictures[index]])
        return index, answer

    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(ask, range(1000)))
    assert len(answers) == 1000
    for index, answer in answers:
        assert answer.labels == [label.decode() for label in expected["top_k_classes"][index]]
        np.testing.assert_allclose(answer.scores, expected["top_k_scores"][index], atol=1e-5)


def test_a_newer_version_is_taken_up(base, pictures, tmp_path):
    own = tmp_path / "pets"
    shutil.copytree(base, own)
    with serving(own) as (model, url, _), client.Client(url, "pets") as asking:
        before = asking.predict(pictures[:1])
        assert not model.reload()
        shutil.copytree(own / "1", own / ".unfinished")
        assert not model.reload()  # not a version yet
        os.rename(own / ".unfinished", own / "3")
        assert model.reload()
        assert get(f"{url}/v1/models/pets")["model_version_status"][0]["version"] == "3"
        assert asking.predict(pictures[:1]) == before
        with pytest.raises(rest.RequestError, match="pets version 1"):
            client.Client(url, "pets", version=1).predict(pictures[:1])


def test_there_must_be_a_version(tmp_path):
    with pytest.raises(FileNotFoundError, match="Expected a version"):
        server.ServedModel("pets", str(tmp_path))


@pytest.mark.slow
def test_sigterm_finishes_what_is_under_way(base, pictures):
    port = free_port()
    command = [sys.executable, "-m", "export.serve", f"--artefact={base}", f"--rest_port={port}", "--grpc_port=0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        url = f"http://localhost:{port}"
        with client.Client(url, "pets", timeout=240, retries=0) as asking:
            wait_until_up(url, process)
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                answers = [pool.submit(asking.predict, pictures * 5, 200) for _ in range(8)]
                time.sleep(0.2)  # requests are under way; whether all of them is not what matters
                process.send_signal(signal.SIGTERM)
                finished = [answer.exception() is None for answer in answers]
        assert process.wait(timeout=60) == 0
        assert any(finished)
        for answer, done in zip(answers, finished, strict=True):
            if done:
                assert len(answer.result()) == 200
            else:  # it came too late: refused at the door, not dropped half-way
                assert isinstance(answer.exception(), ConnectionError)
    finally:
        process.kill()
        process.wait()


def wait_until_up(url, process):
    for _ in range(600):
        assert process.poll() is None, process.stderr.read()
        try:
            get(f"{url}/v1/models/pets")
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the server did not start")
