import shutil
import types

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.exporting import warmup
from keras_vit.inference.saved_model import SavedModelPredictor
from tests import tiny


@pytest.fixture(scope="module")
def artifact(served, tmp_path_factory):
    """A copy to write into."""
    path = tmp_path_factory.mktemp("warm") / "1"
    shutil.copytree(served[1] / "1", path)
    return SavedModelPredictor(str(path))


@pytest.mark.slow
def test_every_signature_and_batch_size_is_run_and_written(artifact):
    signatures = ["features", "features_tensor", "serve_images", "serve_tensor", "serving_default"]
    expected = [(name, size) for size in (1, 4) for name in signatures]
    assert warmup.write(artifact, "pets", tiny.images(3).contents, [4, 1]) == expected
    path = f"{artifact.path}/assets.extra/tf_serving_warmup_requests"
    records = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
    for record, (name, _) in zip(records, expected, strict=True):
        assert name.encode() in record


def test_requests_have_the_shape_of_the_input():
    """The smallest batches are first. The images of a request differ as far as possible."""
    kinds = {"serve_images": tf.uint8, "serve_tensor": tf.float32, "serving_default": tf.string}
    inputs = {name: {"images": types.SimpleNamespace(dtype=kind.as_datatype_enum)} for name, kind in kinds.items()}
    signatures = {name: types.SimpleNamespace(inputs=given) for name, given in inputs.items()}
    artifact = types.SimpleNamespace(card=types.SimpleNamespace(image_shape=(8, 16, 3)), signatures=signatures)
    found = list(warmup._requests(artifact, [b"a", b"b"], [3, 1]))
    assert [(name, len(given["images"])) for name, given in found] == [
        (name, size) for size in (1, 3) for name in kinds
    ]
    assert [given["images"].shape for _, given in found[3:5]] == [(3, 8, 16, 3)] * 2
    assert found[5][1]["images"].tolist() == [b"a", b"b", b"a"]


def test_more_than_a_thousand_warmup_requests_are_refused(tmp_path, monkeypatch):
    artifact = types.SimpleNamespace(path=str(tmp_path), signatures=dict.fromkeys("abcde"))
    with pytest.raises(ValueError, match="at most 1000 requests. Received: 1005"):
        warmup.write(artifact, "pets", tiny.images(1).contents, [1] * 201)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(warmup, "_requests", lambda *_: iter(()))
    assert warmup.write(artifact, "pets", tiny.images(1).contents, [1] * 200) == []


def test_prediction_log_is_encoded_by_the_published_field_numbers():
    """Against the encoding worked out by hand from the published field numbers."""
    values = np.arange(300, dtype=np.uint8)[:200]
    tensor = tf.make_tensor_proto(values).SerializeToString()  # more than 127 bytes: a length of two bytes
    spec = b"\x0a\x01m" + b"\x1a\x01s"
    entry = b"\x0a\x01x" + b"\x12" + size(tensor) + tensor
    request = b"\x0a" + size(spec) + spec + b"\x12" + size(entry) + entry
    predict_log = b"\x0a" + size(request) + request
    record = warmup.encode("m", "s", {"x": values})
    assert record == b"\x32" + size(predict_log) + predict_log  # field 6


def size(content):
    length = len(content)
    return bytes([length]) if length < 128 else bytes([length % 128 + 128, length // 128])


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.zeros((1, 200, 200, 3), np.uint8),
        np.array([b"\x00\xff", b""], object),
    ],
)
def test_records_match_the_published_package(published, value):
    logs = published("tensorflow_serving.apis.prediction_log_pb2")
    record = warmup.encode("pets", "serve_tensor", {"a": value, "b": value[:1]})
    request = logs.PredictionLog.FromString(record).predict_log.request
    assert (request.model_spec.name, request.model_spec.signature_name) == ("pets", "serve_tensor")
    for name, expected in {"a": value, "b": value[:1]}.items():
        found = tf.make_ndarray(request.inputs[name])
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
