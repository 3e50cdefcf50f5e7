"""TF Serving's REST messages: JSON to arrays and back, in its row and its column format.

References:
    https://www.tensorflow.org/tfx/serving/api_rest
"""

import base64
import binascii

import numpy as np
import tensorflow as tf


class RequestError(ValueError):
    """A request that does not fit the model. `status` is the HTTP status code to answer with."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


def parse_predict(body: object, signature_inputs) -> tuple[dict[str, np.ndarray], bool]:
    """The inputs in the body of a predict request.

    Args:
        body: The parsed JSON: `{"instances": [...]}` (rows) or `{"inputs": ...}` (columns).
        signature_inputs: The inputs of the signature by name, as a SignatureDef holds them.

    Returns:
        Arrays by input name, and whether the request is in the row format, in which it wants its answer.

    Raises:
        RequestError: If the body does not fit the signature.
    """
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


def format_predict(outputs: dict[str, np.ndarray], rows: bool) -> dict:
    """The answer to a predict request.

    Args:
        outputs: Arrays by output name, with the batch as their first dimension.
        rows: Whether to answer in the row format.

    Returns:
        `{"predictions": [...]}` or `{"outputs": ...}`; a single output stands for itself, without its name.
    """
    columns = {name: _to_json(value, name) for name, value in outputs.items()}
    single = len(columns) == 1
    if not rows:
        return {"outputs": next(iter(columns.values())) if single else columns}
    if single:
        return {"predictions": next(iter(columns.values()))}
    return {"predictions": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}


def model_status(versions: dict[int, str]) -> dict:
    """The status of each version: number -> state."""
    ok = {"error_code": "OK", "error_message": ""}
    return {
        "model_version_status": [
            {"version": str(version), "state": state, "status": ok}
            for version, state in sorted(versions.items(), reverse=True)
        ]
    }


def _is_named(value, names):
    return isinstance(value, dict) and value.keys() == set(names)


def _to_array(value, name, info):
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
        array = array.astype(dtype.as_numpy_dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise RequestError(f"The input {name!r} cannot be read as {dtype.name}: {error}.") from error
    check_tensor(array, name, info)
    return array


def check_tensor(array: np.ndarray, name: str, info) -> None:
    """Refuses an array that does not fit an input of a signature.

    Raises:
        RequestError: If its type or shape is another.
    """
    dtype = tf.as_dtype(info.dtype)
    if array.dtype != dtype.as_numpy_dtype:
        raise RequestError(f"The input {name!r} must be {dtype.name}. Received: {array.dtype}.")
    expected = [dim.size for dim in info.tensor_shape.dim]
    if array.ndim != len(expected) or any(e not in (-1, n) for e, n in zip(expected, array.shape, strict=True)):
        shape = [size if size >= 0 else None for size in expected]
        raise RequestError(f"The input {name!r} must have the shape {shape}. Received: {list(array.shape)}.")


def _decode_binary(value):
    """Replaces `{"b64": ...}` by its bytes and text by its UTF-8, in lists of any depth."""
    if isinstance(value, list):
        return [_decode_binary(item) for item in value]
    if isinstance(value, dict):
        if value.keys() != {"b64"} or not isinstance(value["b64"], str):
            raise ValueError('objects must be {"b64": "..."}')
        try:
            return base64.b64decode(value["b64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"what stands under b64 is not base64 ({error})") from error
    return value.encode() if isinstance(value, str) else value


def _to_json(array, name):
    if array.dtype != object:
        return array.tolist()
    # The suffix is how a model says that its strings are bytes.
    if name.endswith("_bytes"):
        return _map(array.tolist(), lambda item: {"b64": base64.b64encode(item).decode()})
    return _map(array.tolist(), lambda item: item.decode("utf-8", "replace"))


def _map(value, function):
    return [_map(item, function) for item in value] if isinstance(value, list) else function(value)
