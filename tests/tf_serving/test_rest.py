"""The JSON of requests and responses, as documented for the REST API."""

import base64

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from export.serving import rest
from keras_vit.tf_serving import RequestError


def inputs(**shapes):
    """Inputs of a signature: name=(dtype, shape)."""
    definition = meta_graph_pb2.SignatureDef()
    for name, (dtype, shape) in shapes.items():
        definition.inputs[name].dtype = dtype.as_datatype_enum
        definition.inputs[name].tensor_shape.CopyFrom(tf.TensorShape(shape).as_proto())
    return definition.inputs


IMAGES = inputs(image_bytes=(tf.string, [None]))
NUMBERS = inputs(x=(tf.float32, [None, 2]))
FLAGS = inputs(x=(tf.bool, [None]))
TWO = inputs(x=(tf.float32, [None, 2]), y=(tf.int32, [None]))
B64 = {"b64": base64.b64encode(b"\xff\x00").decode()}


@pytest.mark.parametrize(
    ("body", "signature", "expected", "rows"),
    [
        ({"instances": [B64, B64]}, IMAGES, {"image_bytes": [b"\xff\x00"] * 2}, True),
        ({"instances": [{"image_bytes": B64}]}, IMAGES, {"image_bytes": [b"\xff\x00"]}, True),
        ({"inputs": [B64]}, IMAGES, {"image_bytes": [b"\xff\x00"]}, False),
        ({"inputs": {"image_bytes": ["text"]}}, IMAGES, {"image_bytes": [b"text"]}, False),
        ({"instances": [[1, 2], [3, 4.5]]}, NUMBERS, {"x": [[1, 2], [3, 4.5]]}, True),
        ({"instances": [{"x": [1, 2], "y": 3}]}, TWO, {"x": [[1, 2]], "y": [3]}, True),
        ({"instances": [True, False]}, FLAGS, {"x": [True, False]}, True),
        ({"inputs": {"x": [[1, 2]], "y": [3]}}, TWO, {"x": [[1, 2]], "y": [3]}, False),
    ],
)
def test_row_and_column_requests_are_parsed(body, signature, expected, rows):
    arrays, is_rows = rest.parse_predict(body, signature)
    assert is_rows == rows
    assert {name: array.tolist() for name, array in arrays.items()} == expected
    for name, array in arrays.items():
        assert array.dtype == tf.as_dtype(signature[name].dtype).as_numpy_dtype


LONG = bytes(range(250))
UNPADDED = {"b64": base64.b64encode(b"\xff").decode().rstrip("=")}


def test_base64_with_white_space_or_without_padding_is_read():
    """TF Serving takes both (absl::Base64Unescape)."""
    lines = base64.encodebytes(LONG).decode()
    assert lines.count("\n") > 1
    values = [{"b64": lines}, {"b64": lines.replace("\n", "\r\n ")}, {"b64": "\t"}, UNPADDED]
    arrays, _ = rest.parse_predict({"instances": values}, IMAGES)
    assert arrays["image_bytes"].tolist() == [LONG, LONG, b"", b"\xff"]


@pytest.mark.parametrize(
    ("body", "signature", "message"),
    [
        ([], IMAGES, "either 'instances'"),
        ({}, IMAGES, "either 'instances'"),
        ({"instances": [1], "inputs": [1]}, IMAGES, "either 'instances'"),
        ({"instances": []}, IMAGES, "at least one instance"),
        ({"instances": "a"}, IMAGES, "at least one instance"),
        ({"instances": [{"image_bytes": B64}, B64]}, IMAGES, "Every instance must have exactly the inputs"),
        ({"instances": [{"img": B64}]}, IMAGES, r"exactly the inputs \['image_bytes'\].*\['img'\]"),
        ({"instances": [B64, {}]}, IMAGES, "exactly the inputs"),
        ({"inputs": {"img": [B64]}}, IMAGES, r"exactly the inputs.*\['img'\]"),
        ({"inputs": [[1, 2]]}, TWO, "'inputs' must have exactly the inputs"),
        ({"instances": [{"b64": "%%%"}]}, IMAGES, "cannot be read as string"),
        ({"instances": [{"b64": 5}]}, IMAGES, "objects must be"),
        ({"instances": [{"b64": "/w="}]}, IMAGES, "cannot be read as string"),
        ({"instances": [{"b64": "/"}]}, IMAGES, "cannot be read as string"),
        ({"instances": [{"b64": "_w=="}]}, IMAGES, "cannot be read as string"),
        ({"instances": [{"b64": "/w\u00a0=="}]}, IMAGES, "cannot be read as string"),
        ({"instances": [[True, False]]}, NUMBERS, "true or false"),
        ({"instances": [[1, True]]}, NUMBERS, "true or false"),
        ({"instances": [True]}, IMAGES, "cannot be read as string"),
        ({"instances": [1, 0]}, FLAGS, "must contain booleans"),
        ({"instances": [1]}, IMAGES, "must contain strings"),
        ({"instances": [[1, 2], [3]]}, NUMBERS, "cannot be read as float32"),
        ({"instances": [["a", "b"]]}, NUMBERS, "cannot be read as float32"),
        ({"instances": [[True, 2]]}, NUMBERS, "must not contain true or false"),
        ({"instances": [[1, 2, 3]]}, NUMBERS, r"must have the shape \[None, 2\]. Received: \[1, 3\]"),
        ({"instances": [{"x": [1, 2]}]}, TWO, "exactly the inputs"),
        ({"inputs": {"x": [[1, 2]], "y": [0.5]}}, TWO, "integers from"),
        ({"inputs": {"x": [[1, 2]], "y": [2**40]}}, TWO, "integers from"),
    ],
)
def test_malformed_requests_are_refused(body, signature, message):
    with pytest.raises(RequestError, match=message):
        rest.parse_predict(body, signature)


def test_responses_are_formatted_by_rows_and_columns():
    scores = np.array([[0.5, 0.25]], np.float32)
    labels = np.array([[b"a", "é".encode()]], object)
    assert rest.format_predict({"s": scores, "l": labels}, True) == {
        "predictions": [{"s": [0.5, 0.25], "l": ["a", "é"]}]
    }
    assert rest.format_predict({"s": scores, "l": labels}, False) == {
        "outputs": {"s": [[0.5, 0.25]], "l": [["a", "é"]]}
    }
    assert rest.format_predict({"s": scores}, True) == {"predictions": [[0.5, 0.25]]}
    assert rest.format_predict({"s": scores}, False) == {"outputs": [[0.5, 0.25]]}
    assert rest.format_predict({"l": np.array([b"\xff"], object)}, True) == {"predictions": ["\ufffd"]}
    encoded = {"b64": base64.b64encode(b"a").decode()}
    assert rest.format_predict({"raw_bytes": labels[:, :1]}, True) == {"predictions": [[encoded]]}
