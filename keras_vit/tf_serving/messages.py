"""Messages of TF Serving's Predict method and of its warm-up files.

The package that holds them, `tensorflow-serving-api`, requires the `tensorflow` distribution, which must not share an
environment with `tensorflow-cpu` or `tensorflow-tpu`. The part that the client needs is declared below. Tensors are
declared as bytes, which have the same encoding, and hold the messages of `tensors`.

References:
    https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis
"""

import functools
import types
from collections.abc import Mapping
from typing import Any

from keras_vit.tf_serving import protobuf, tensors

PACKAGE = "tensorflow.serving"
PREDICTION_SERVICE = f"{PACKAGE}.PredictionService"


class RequestError(ValueError):
    """Request that the server refuses. `status` is the HTTP status code."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


# See `protobuf.declare`.
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
    return protobuf.declare(PACKAGE, _MESSAGES)


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
        request.inputs[name] = tensors.encode(value)
    return request


def metadata_json(name: str, version: int, signatures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a metadata request over REST.

    Args:
        name: Name of the model.
        version: Version that is served.
        signatures: SignatureDef messages by name.
    """
    definitions = {key: protobuf.to_dict(value) for key, value in signatures.items()}
    return {
        "model_spec": {"name": name, "signature_name": "", "version": str(version)},
        "metadata": {"signature_def": {"signature_def": definitions}},
    }
