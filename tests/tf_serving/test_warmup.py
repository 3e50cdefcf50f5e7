import shutil

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.inference.saved_model import SavedModelClassifier
from keras_vit.tf_serving import messages, tensors, warmup
from tests import tiny


@pytest.fixture(scope="module")
def artifact(served, tmp_path_factory):
    """A copy to write into."""
    path = tmp_path_factory.mktemp("warm") / "1"
    shutil.copytree(served[1] / "1", path)
    return SavedModelClassifier(str(path))


@pytest.mark.slow
def test_every_signature_and_batch_size_is_replayed(artifact):
    path = warmup.write_warmup(artifact, "pets", tiny.images(3).contents, [4, 1])
    assert path.endswith("/assets.extra/tf_serving_warmup_requests")
    signatures = ["attention", "features", "features_tensor", "serve_images", "serve_tensor", "serving_default"]
    assert warmup.replay(artifact) == [(name, size) for size in (1, 4) for name in signatures]
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        assert messages.messages().PredictionLog.FromString(record).predict_log.request.model_spec.name == "pets"


def test_a_server_takes_a_thousand_records(artifact):
    with pytest.raises(ValueError, match="at most 1000 requests. Received: 1206"):
        warmup.write_warmup(artifact, "pets", tiny.images(1).contents, [1] * 201)


def test_bytes_of_a_prediction_log():
    """Against the encoding worked out by hand from the published field numbers."""
    log = messages.messages().PredictionLog()
    log.predict_log.request.model_spec.name = "m"
    log.predict_log.request.model_spec.signature_name = "s"
    log.predict_log.request.model_spec.version.value = 3
    spec = b"\x0a\x01m" + b"\x12\x02\x08\x03" + b"\x1a\x01s"
    request = b"\x0a" + bytes([len(spec)]) + spec
    predict_log = b"\x0a" + bytes([len(request)]) + request
    assert log.SerializeToString() == b"\x32" + bytes([len(predict_log)]) + predict_log  # field 6


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.zeros((1, 2, 2, 3), np.uint8),
        np.array([b"\x00\xff", b""], object),
        np.array([True, False]),
    ],
)
def test_tensors_survive_the_wire(value):
    decoded = tensors.decode(tensors.encode(value))
    np.testing.assert_array_equal(decoded, value)
    assert decoded.dtype == value.dtype


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "int32", "uint8", "int8", "int64", "bool", "float16", "bfloat16"]
)
def test_tensors_are_tensorflow_s(dtype):
    value = tf.cast([[0, 1, 1], [1, 0, 1]], dtype).numpy()
    theirs = tf.make_tensor_proto(value)
    ours = type(theirs).FromString(tensors.encode(value))
    np.testing.assert_array_equal(tf.make_ndarray(ours), value)
    np.testing.assert_array_equal(tensors.decode(theirs.SerializeToString()), value)
    short = tf.make_tensor_proto(np.ones((2, 3), value.dtype))  # TensorFlow may write a repeated value once
    np.testing.assert_array_equal(tensors.decode(short.SerializeToString()), np.ones((2, 3)))
    assert tensors.decode(theirs.SerializeToString()).dtype == value.dtype
    scalar = tf.make_tensor_proto(value[0, 1])
    assert tensors.decode(scalar.SerializeToString()).shape == () and tensors.decode(tensors.encode(value[0, 1])) == 1


def test_strings_are_tensorflow_s():
    for value in ([b"a", b"\xff"], np.array([["a", "b"]]), b"one"):
        theirs = tf.make_tensor_proto(value)
        ours = type(theirs).FromString(tensors.encode(value))
        np.testing.assert_array_equal(tf.make_ndarray(ours), tf.make_ndarray(theirs))
        np.testing.assert_array_equal(tensors.decode(theirs.SerializeToString()), tf.make_ndarray(theirs))


def test_messages_are_those_of_the_published_package(published):
    predict_pb2 = published("tensorflow_serving.apis.predict_pb2")
    logs = published("tensorflow_serving.apis.prediction_log_pb2")
    request = messages.predict_request("pets", "serve_tensor", {"images": np.ones((1, 2))}, version=7)
    theirs = predict_pb2.PredictRequest.FromString(request.SerializeToString())
    assert theirs.model_spec.name == "pets"
    assert theirs.model_spec.version.value == 7
    np.testing.assert_array_equal(tf.make_ndarray(theirs.inputs["images"]), np.ones((1, 2)))
    ours = messages.messages().PredictRequest.FromString(theirs.SerializeToString())
    np.testing.assert_array_equal(tensors.decode(ours.inputs["images"]), np.ones((1, 2)))
    for name, package in (("PredictRequest", predict_pb2), ("PredictResponse", predict_pb2), ("PredictionLog", logs)):
        published = {field.name: field.number for field in getattr(package, name).DESCRIPTOR.fields}
        for field in getattr(messages.messages(), name).DESCRIPTOR.fields:
            assert published[field.name] == field.number
