"""Messages of TF Serving's Predict method and of its warm-up files.

The package that holds them, `tensorflow-serving-api`, requires the `tensorflow` distribution, which must not share an
environment with `tensorflow-cpu` or `tensorflow-tpu`. The part that the client needs is declared below: fields, numbers
and types define the bytes on the wire. Tensors are declared as bytes, which have the same encoding, and hold serialized
TensorFlow messages.

References:
    https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis
"""

import functools
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

PACKAGE = "tensorflow.serving"
PREDICTION_SERVICE = f"{PACKAGE}.PredictionService"


class RequestError(ValueError):
    """Request that the server refuses. `status` is the HTTP status code."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


# message -> (field, number, type); "map" is a map from string to bytes, "[]" marks repeated fields.
_MESSAGES = {
    "Int64Value": (("value", 1, "int64"),),
    "ModelSpec": (
        ("name", 1, "string"),
        ("version", 2, "Int64Value"),
        ("signature_name", 3, "string"),
        ("version_label", 4, "string"),
    ),
    "PredictRequest": (("model_spec", 1, "ModelSpec"), ("inputs", 2, "map"), ("output_filter", 3, "string[]")),
    "PredictResponse": (("outputs", 1, "map"), ("model_spec", 2, "ModelSpec")),
    "PredictLog": (("request", 1, "PredictRequest"), ("response", 2, "PredictResponse")),
    "PredictionLog": (("predict_log", 6, "PredictLog"),),
}


@functools.cache
def messages() -> types.SimpleNamespace:
    """Return the message classes by name, such as `messages().PredictRequest`."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field_type = descriptor_pb2.FieldDescriptorProto
    scalars = {"int32": field_type.TYPE_INT32, "int64": field_type.TYPE_INT64}
    scalars |= {"string": field_type.TYPE_STRING, "bytes": field_type.TYPE_BYTES}
    file = descriptor_pb2.FileDescriptorProto(name="keras_vit/tf_serving.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            repeated = kind.endswith("[]") or kind == "map"
            field = message.field.add(name=field_name, number=number)
            field.label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
            kind = kind.removesuffix("[]")
            if kind in scalars:
                field.type = scalars[kind]
                continue
            field.type = field_type.TYPE_MESSAGE
            if kind == "map":
                entry = message.nested_type.add(name=field_name.title().replace("_", "") + "Entry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, type=scalars["string"], label=field_type.LABEL_OPTIONAL)
                entry.field.add(name="value", number=2, type=scalars["bytes"], label=field_type.LABEL_OPTIONAL)
                kind = f"{name}.{entry.name}"
            field.type_name = f".{PACKAGE}.{kind}"
    # A pool of its own: the real package may be imported in the same process.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _MESSAGES
    }
    return types.SimpleNamespace(**classes)


def encode_tensor(value: Any) -> bytes:
    """Return the bytes of a tensor's `TensorProto`.

    Args:
        value: A NumPy array, or anything that becomes one; strings and bytes become string tensors.
    """
    return tf.make_tensor_proto(value).SerializeToString()


def decode_tensor(content: bytes) -> np.ndarray:
    """Return the array in the bytes of a `TensorProto`; string tensors become arrays of bytes objects."""
    return tf.make_ndarray(tensor_pb2.TensorProto.FromString(content))


def predict_request(model: str, signature: str, inputs: Mapping[str, Any], version: int | None = None) -> Any:
    """Return a `PredictRequest`.

    Args:
        model: Name of the model on the server.
        signature: Name of the signature.
        inputs: Arrays by input name.
        version: Version of the model; None for the newest.
    """
    request = messages().PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    if version is not None:
        request.model_spec.version.value = version
    for name, value in inputs.items():
        request.inputs[name] = encode_tensor(value)
    return request


def metadata_json(name: str, version: int, signatures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a metadata request over REST.

    Args:
        name: Name of the model.
        version: Version that is served.
        signatures: SignatureDef messages by name.
    """
    from google.protobuf import json_format

    definitions = {
        key: json_format.MessageToDict(value, preserving_proto_field_name=True) for key, value in signatures.items()
    }
    return {
        "model_spec": {"name": name, "signature_name": "", "version": str(version)},
        "metadata": {"signature_def": {"signature_def": definitions}},
    }
