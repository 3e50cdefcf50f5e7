"""JSON of TF Serving's REST API: requests and answers in its row and its column format.

References:
    https://www.tensorflow.org/tfx/serving/api_rest
"""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.tf_serving.client import RequestError


def parse_predict(body: object, signature_inputs: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], bool]:
    """Read the inputs in the body of a predict request."""
    if not isinstance(body, dict) or ("instances" in body) == ("inputs" in body):
        raise RequestError("Expected a JSON object with either 'instances' (rows) or 'inputs' (columns).")
    names = list(signature_inputs)
    if "instances" in body:
        rows = body["instances"]
        if not isinstance(rows, list) or not rows:
            raise RequestError("'instances' must be a list of at least one instance.")
        if len(names) == 1 and not _is_named(rows[0], names):
            columns = {names[0]: rows}
        elif all(isinstance(row, dict) and row.keys() == set(names) for row in rows):
            columns = {name: [row[name] for row in rows] for name in names}
        else:
            raise RequestError(f"Every instance must hold exactly the inputs {names}.")
    else:
        columns = body["inputs"] if _is_named(body["inputs"], names) else {names[0]: body["inputs"]}
        if len(names) > 1 and columns.keys() != set(names):
            raise RequestError(f"'inputs' must hold exactly the inputs {names}.")
    arrays = {name: _to_array(value, name, signature_inputs[name]) for name, value in columns.items()}
    return arrays, "instances" in body


def format_predict(outputs: Mapping[str, np.ndarray], rows: bool) -> dict[str, Any]:
    """Return the answer to a predict request."""
    for name, value in outputs.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise RequestError(f"The output {name!r} of the model holds NaN or infinity.", 500)
    columns = {name: _to_json(value, name) for name, value in outputs.items()}
    single = len(columns) == 1
    if not rows:
        return {"outputs": next(iter(columns.values())) if single else columns}
    if single:
        return {"predictions": next(iter(columns.values()))}
    return {"predictions": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}


def model_metadata(name: str, version: int, signatures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a metadata request."""
    from google.protobuf import json_format

    definitions = {
        key: json_format.MessageToDict(value, preserving_proto_field_name=True) for key, value in signatures.items()
    }
    return {
        "model_spec": {"name": name, "signature_name": "", "version": str(version)},
        "metadata": {"signature_def": {"signature_def": definitions}},
    }


def model_status(versions: Mapping[int, str]) -> dict[str, Any]:
    """Return the answer to a status request."""
    ok = {"error_code": "OK", "error_message": ""}
    return {
        "model_version_status": [
            {"version": str(version), "state": state, "status": ok}
            for version, state in sorted(versions.items(), reverse=True)
        ]
    }


def _is_named(value: object, names: Sequence[str]) -> bool:
    return isinstance(value, dict) and value.keys() == set(names)


def _to_array(value: object, name: str, info: Any) -> np.ndarray:
    dtype = tf.as_dtype(info.dtype)
    try:
        array = np.array(_decode_binary(value), dtype=object if dtype == tf.string else None)
        if dtype != tf.string and array.dtype.kind not in "biuf":
            raise ValueError("it must hold numbers in lists of equal lengths")
        if dtype == tf.string and not all(isinstance(item, bytes) for item in array.ravel()):
            raise ValueError('it must hold strings or {"b64": "..."}')
        if dtype.is_integer:
            limits = np.iinfo(dtype.as_numpy_dtype)
            if array.size and (array.min() < limits.min or array.max() > limits.max or (array % 1).any()):
                raise ValueError(f"it must hold integers from {limits.min} to {limits.max}")
        with np.errstate(over="ignore"):  # infinity, which is refused
            array = array.astype(dtype.as_numpy_dtype)
        if dtype.is_floating and not np.isfinite(array).all():
            raise ValueError("it must hold finite numbers")
    except (ValueError, TypeError, OverflowError) as error:
        raise RequestError(f"The input {name!r} cannot be read as {dtype.name}: {error}.") from error
    _check_shape(array, name, info)
    return array


def _check_shape(array: np.ndarray, name: str, info: Any) -> None:
    """Refuse an array whose shape does not fit an input of a signature."""
    expected = [dim.size for dim in info.tensor_shape.dim]
    if array.ndim != len(expected) or any(e not in (-1, n) for e, n in zip(expected, array.shape, strict=True)):
        shape = [size if size >= 0 else None for size in expected]
        raise RequestError(f"The input {name!r} must have the shape {shape}. Received: {list(array.shape)}.")


def _decode_binary(value: Any) -> Any:
    """Replace `{"b64": ...}` by its bytes and text by its UTF-8, in lists of any depth."""
    if isinstance(value, list):
        return [_decode_binary(item) for item in value]
    if isinstance(value, dict):
        if value.keys() != {"b64"} or not isinstance(value["b64"], str):
            raise ValueError('objects must be {"b64": "..."}')
        try:
            return base64.b64decode(value["b64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"the value of b64 is not base64 ({error})") from error
    return value.encode() if isinstance(value, str) else value


def _to_json(array: np.ndarray, name: str) -> Any:
    if array.dtype != object:
        return array.tolist()
    # The suffix marks strings that are bytes.
    if name.endswith("_bytes"):
        return _map(array.tolist(), lambda item: {"b64": base64.b64encode(item).decode()})
    return _map(array.tolist(), lambda item: item.decode("utf-8", "replace"))


def _map(value: Any, function: Callable) -> Any:
    return [_map(item, function) for item in value] if isinstance(value, list) else function(value)
