"""JSON of TF Serving's REST API: predict requests and responses in the row format and the column format.

References:
    https://www.tensorflow.org/tfx/serving/api_rest
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.tf_serving import RequestError


def parse_predict(body: object, signature_inputs: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], bool]:
    """Return the inputs of a predict request, and whether they are in the row format."""
    if not isinstance(body, dict) or ("instances" in body) == ("inputs" in body):
        raise RequestError("Expected a JSON object with either 'instances' (rows) or 'inputs' (columns).")
    names = list(signature_inputs)
    if "instances" in body:
        rows = body["instances"]
        if not isinstance(rows, list) or not rows:
            raise RequestError("'instances' must be a list of at least one instance.")
        if len(names) == 1 and not any(map(_is_object, rows)):
            columns = {names[0]: rows}
        else:
            for row in rows:
                _check_names(row, names, "Every instance")
            columns = {name: [row[name] for row in rows] for name in names}
    else:
        columns = body["inputs"] if _is_object(body["inputs"]) else {names[0]: body["inputs"]}
        _check_names(columns, names, "'inputs'")
    arrays = {name: _to_array(value, name, signature_inputs[name]) for name, value in columns.items()}
    return arrays, "instances" in body


def format_predict(outputs: Mapping[str, np.ndarray], rows: bool) -> dict[str, Any]:
    """Return the response to a predict request."""
    for name, value in outputs.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise RequestError(f"The output {name!r} of the model contains NaN or infinity.", 500)
    columns = {name: _to_json(value, name) for name, value in outputs.items()}
    single = next(iter(columns.values())) if len(columns) == 1 else None
    if not rows:
        return {"outputs": columns if single is None else single}
    if single is not None:
        return {"predictions": single}
    return {"predictions": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}


def _is_object(value: object) -> bool:
    """Return whether a value has the inputs as keys, and is not bytes."""
    return isinstance(value, dict) and value.keys() != {"b64"}


def _check_names(value: object, names: Sequence[str], what: str) -> None:
    if not isinstance(value, dict) or value.keys() != set(names):
        received = str(list(value))[:200] if isinstance(value, dict) else "no names"
        raise RequestError(f"{what} must have exactly the inputs {names}. Received: {received}.")


def _to_array(value: object, name: str, info: Any) -> np.ndarray:
    """Convert nested lists to an array with the dtype and shape of a signature's input, or raise an error."""
    dtype = tf.as_dtype(info.dtype)
    try:
        array = np.array(_decode(value, dtype), object if dtype == tf.string else None)
        if dtype == tf.string:
            if not all(isinstance(item, bytes) for item in array.ravel()):
                raise ValueError('it must contain strings or {"b64": "..."}')
        elif array.dtype.kind not in ("b" if dtype.is_bool else "iuf"):
            raise ValueError(f"it must contain {'booleans' if dtype.is_bool else 'numbers'} in lists of equal lengths")
        with np.errstate(all="ignore"):  # numbers that do not fit are rejected below
            converted = array.astype(dtype.as_numpy_dtype)
        if dtype.is_integer and (converted != array).any():
            raise ValueError(f"it must contain integers from {dtype.min} to {dtype.max}")
        if dtype.is_floating and not np.isfinite(converted).all():
            raise ValueError("it must contain finite numbers")
    except (ValueError, TypeError, OverflowError) as error:
        raise RequestError(f"The input {name!r} cannot be read as {dtype.name}: {error}.") from error
    shape = tf.TensorShape(info.tensor_shape)
    if not shape.is_compatible_with(converted.shape):
        raise RequestError(f"The input {name!r} must have the shape {shape.as_list()}. Received: {list(array.shape)}.")
    return converted


def _decode(value: Any, dtype: tf.DType) -> Any:
    """Replace `{"b64": ...}` with its bytes and text with its UTF-8 encoding, in lists of any depth."""
    if isinstance(value, list):
        return [_decode(item, dtype) for item in value]
    if isinstance(value, dict):
        if value.keys() != {"b64"} or not isinstance(value["b64"], str):
            raise ValueError('objects must be {"b64": "..."}')
        text = b"".join(value["b64"].encode().split())  # like TF Serving, skip white space; padding is optional
        return base64.b64decode(text if b"=" in text else text + b"=" * (-len(text) % 4), validate=True)
    if isinstance(value, bool) and not dtype.is_bool:
        raise ValueError("it must not contain true or false")  # NumPy would convert them to numbers
    return value.encode() if isinstance(value, str) else value


def _to_json(array: np.ndarray, name: str) -> Any:
    if array.dtype != object:
        return array.tolist()
    # The suffix marks outputs of bytes.
    if name.endswith("_bytes"):
        return _map(array.tolist(), lambda item: {"b64": base64.b64encode(item).decode()})
    return _map(array.tolist(), lambda item: item.decode("utf-8", "replace"))


def _map(value: Any, function: Callable) -> Any:
    return [_map(item, function) for item in value] if isinstance(value, list) else function(value)
