"""The client over gRPC, against a server of the published messages where they are installed, else of our own."""

import concurrent.futures
import contextlib
import functools
import socket
import threading

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.tf_serving import client, messages, tensors
from keras_vit.tf_serving.messages import RequestError
from tests import tiny

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'keras-vision-transformers[serving]'")


@contextlib.contextmanager
def listening(handlers):
    executor = concurrent.futures.ThreadPoolExecutor(4)
    grpc_server = grpc.server(executor)
    handlers(grpc_server)
    port = grpc_server.add_insecure_port("localhost:0")
    grpc_server.start()
    try:
        yield f"localhost:{port}"
    finally:
        grpc_server.stop(None).wait()
        executor.shutdown(wait=False)


def predicting(method):
    """Our own messages behind the published names of service and method."""
    types = messages.messages()

    def add(grpc_server):
        handler = grpc.unary_unary_rpc_method_handler(
            method, types.PredictRequest.FromString, lambda response: response.SerializeToString()
        )
        handlers = grpc.method_handlers_generic_handler("tensorflow.serving.PredictionService", {"Predict": handler})
        grpc_server.add_generic_rpc_handlers((handlers,))

    return add


def test_predictions_of_our_messages():
    received = []

    def predict(request, _):
        received.append(request)
        contents = tensors.decode(request.inputs["image_bytes"])
        response = messages.messages().PredictResponse()
        valid = np.array([content != b"bad" for content in contents])
        outputs = {
            "top_k_classes": np.array([[content, b"x"] for content in contents], object),
            "top_k_scores": np.array([[0.75, 0.25]] * len(contents), np.float32),
            "valid": valid,
        }
        for name, value in outputs.items():
            response.outputs[name] = tensors.encode(value)
        return response

    with listening(predicting(predict)) as address, client.Client(address, "pets", version=3) as asking:
        answers = asking.predict([b"a", b"bad", b"c"], batch_size=2)
    assert [answer.valid for answer in answers] == [True, False, True]
    assert answers[0] == client.Prediction(["a", "x"], [0.75, 0.25], True)
    assert [request.model_spec.name for request in received] == ["pets"] * 2
    assert {request.model_spec.version.value for request in received} == {3}
    assert {request.model_spec.signature_name for request in received} == {"serving_default"}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.NOT_FOUND, RequestError),
        (grpc.StatusCode.INVALID_ARGUMENT, RequestError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, RequestError),
        (grpc.StatusCode.UNAVAILABLE, ConnectionError),
    ],
)
def test_refusals_are_not_retried_and_absence_is(code, error, monkeypatch):
    calls, pauses = [], []
    monkeypatch.setattr(client.time, "sleep", pauses.append)

    def refuse(_, context):
        calls.append(code)
        context.abort(code, "no such thing")

    with (
        listening(predicting(refuse)) as address,
        client.Client(address, "pets", retries=3) as asking,
        pytest.raises(error, match="no such thing") as caught,
    ):
        asking.run("serve_tensor", {"images": np.zeros((1, 2))})
    retried = error is ConnectionError
    assert (len(calls), len(pauses)) == ((4, 3) if retried else (1, 0))
    if not retried:
        assert caught.value.status == (404 if code == grpc.StatusCode.NOT_FOUND else 400)


def test_a_deadline_is_a_timeout():
    finish = threading.Event()
    with listening(predicting(lambda *_: finish.wait(30))) as address:
        with client.Client(address, "pets", timeout=0.5, retries=5, backoff=100) as asking, pytest.raises(TimeoutError):
            asking.run("serve_tensor", {"images": np.zeros((1, 2))})
        finish.set()


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


def test_the_published_service_understands_the_client(published, served):
    """A service of TF Serving's own stubs, which answers with its own messages."""
    stubs = published("tensorflow_serving.apis.prediction_service_pb2_grpc")
    predict_pb2 = published("tensorflow_serving.apis.predict_pb2")
    model, _, _ = served

    class Service(stubs.PredictionServiceServicer):
        def Predict(self, request, context):  # noqa: N802  the name in the published service
            assert request.model_spec.name == "pets"
            assert request.model_spec.version.value == 1
            images = tf.make_ndarray(request.inputs["images"])
            response = predict_pb2.PredictResponse()
            logits = np.asarray(model(images, training=False))
            response.outputs["logits"].CopyFrom(tf.make_tensor_proto(logits))
            response.outputs["labels"].CopyFrom(tf.make_tensor_proto([b"\xff", b"a"]))
            return response

    images = np.stack([tiny.preprocess(tf.constant(content)).numpy() for content in tiny.images(2).contents])
    add = functools.partial(stubs.add_PredictionServiceServicer_to_server, Service())
    with listening(add) as address, client.Client(address, "pets", version=1) as asking:
        answer = asking.run("serve_tensor", {"images": images})
    np.testing.assert_array_equal(answer["logits"], np.asarray(model(images, training=False)))
    assert answer["labels"].tolist() == [b"\xff", b"a"]
