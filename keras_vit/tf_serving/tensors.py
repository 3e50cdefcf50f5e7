"""Arrays as the bytes of a `TensorProto`, without TensorFlow.

References:
    https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/framework/tensor.proto
"""

import functools
from typing import Any

import ml_dtypes
import numpy as np

from keras_vit.tf_serving import protobuf

_STRING = 7
# Number of a dtype, its NumPy type, and the field that holds values which are not in `tensor_content`.
_DTYPES = (
    (1, np.float32, "float_val"),
    (2, np.float64, "double_val"),
    (3, np.int32, "int_val"),
    (4, np.uint8, "int_val"),
    (5, np.int16, "int_val"),
    (6, np.int8, "int_val"),
    (9, np.int64, "int64_val"),
    (10, np.bool_, "bool_val"),
    (14, ml_dtypes.bfloat16, "half_val"),
    (17, np.uint16, "int_val"),
    (19, np.float16, "half_val"),
    (22, np.uint32, "uint32_val"),
    (23, np.uint64, "uint64_val"),
)
# See `protobuf.declare`.
_MESSAGES: dict[str, protobuf.Fields] = {
    "Dim": (("size", 1, "int64"),),
    "Shape": (("dim", 2, "Dim[]"),),
    "Tensor": (
        ("dtype", 1, "int32"),
        ("tensor_shape", 2, "Shape"),
        ("tensor_content", 4, "bytes"),
        ("float_val", 5, "float[]"),
        ("double_val", 6, "double[]"),
        ("int_val", 7, "int32[]"),
        ("string_val", 8, "bytes[]"),
        ("int64_val", 10, "int64[]"),
        ("bool_val", 11, "bool[]"),
        ("half_val", 13, "int32[]"),
        ("uint32_val", 16, "uint32[]"),
        ("uint64_val", 17, "uint64[]"),
    ),
}


def encode(value: Any) -> bytes:
    """Return the bytes of a tensor's `TensorProto`.

    Args:
        value: A NumPy array, or anything that becomes one; strings and bytes become string tensors. Python's numbers
            become float32 and int32.

    Raises:
        ValueError: If a tensor has no such dtype.
    """
    array = np.asarray(value)
    if not isinstance(value, np.ndarray | np.generic):
        array = array.astype(
            {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32}.get(array.dtype, array.dtype)
        )
    tensor = _message()()
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    if array.dtype.kind in "OSU":
        tensor.dtype = _STRING
        tensor.string_val.extend(item.encode() if isinstance(item, str) else bytes(item) for item in array.flat)
        return tensor.SerializeToString()
    numbers = [number for number, dtype, _ in _DTYPES if array.dtype == dtype]
    if not numbers:
        raise ValueError(f"Expected numbers, strings or bytes. Received: an array of dtype {array.dtype}.")
    tensor.dtype, tensor.tensor_content = numbers[0], np.ascontiguousarray(array).tobytes()
    return tensor.SerializeToString()


def decode(content: bytes) -> np.ndarray:
    """Return the array in the bytes of a `TensorProto`; string tensors become arrays of bytes objects.

    Args:
        content: Serialized message.

    Raises:
        ValueError: If the dtype is not known.
    """
    tensor = _message().FromString(content)
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.dtype == _STRING:
        return _filled(np.array(list(tensor.string_val), object), shape)
    known = {number: (np.dtype(dtype), field) for number, dtype, field in _DTYPES}
    if tensor.dtype not in known:
        raise ValueError(f"Expected a tensor of numbers or strings. Received: dtype {tensor.dtype}.")
    dtype, field = known[tensor.dtype]
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, dtype).reshape(shape).copy()
    values = np.array(list(getattr(tensor, field)))
    return _filled(values.astype(np.uint16).view(dtype) if field == "half_val" else values.astype(dtype), shape)


def _filled(values: np.ndarray, shape: list[int]) -> np.ndarray:
    """Return values in a shape; the last one stands for those that follow it."""
    count = int(np.prod(shape, dtype=np.int64))
    if not values.size:
        return np.zeros(shape, values.dtype)
    return np.concatenate([values, np.repeat(values[-1:], max(count - values.size, 0))]).reshape(shape)


@functools.cache
def _message() -> Any:
    return protobuf.declare("keras_vit", _MESSAGES).Tensor
