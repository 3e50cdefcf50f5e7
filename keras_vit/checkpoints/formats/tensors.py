"""Interface of the formats: headers first, then one tensor at a time."""

import dataclasses
import json
import math
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, Protocol

import numpy as np

from keras_vit.checkpoints.errors import CheckpointError

MAX_JSON_BYTES = 16 * 2**20  # the largest configuration, of 21,843 class names, has 2
MAX_DIMENSIONS = 8
MAX_NAME_LENGTH = 1024
_BLOCK_BYTES = 4 * 2**20


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """Header of one stored tensor.

    Attributes:
        shape: Its shape.
        dtype: Dtype that `read` returns.
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class TensorSource(Protocol):
    """Open checkpoint file: a mapping of names to headers, and the tensors on demand.

    Attributes:
        path: Name of the file, for messages.
        tensors: Headers of all tensors by name.
        config: Configuration of the model (`config.json`), if there is one.
        metadata: Note of `keras_vit.save_checkpoint`, if it wrote the file.
    """

    path: str
    tensors: dict[str, TensorInfo]
    config: dict[str, Any] | None
    metadata: dict[str, Any]

    def read(self, name: str) -> np.ndarray:
        """Return one tensor."""
        ...

    def blocks(self, name: str, multiple: int = 1, verify: bool = True) -> Iterator[np.ndarray]:
        """Yield a tensor's elements in stored order, in one-dimensional arrays of a few MiB.

        Args:
            name: The tensor.
            multiple: Divisor of the number of elements in each block.
            verify: Whether to compare the checksum at the end, where the format has one.
        """
        ...

    def is_row_major(self, name: str) -> bool:
        """Return whether the elements are stored row by row, so that blocks of whole rows can be read."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def block_sizes(count: int, itemsize: int, multiple: int) -> Iterator[int]:
    """Yield the number of elements of each block that a tensor is read in."""
    step = max(_BLOCK_BYTES // (itemsize * max(multiple, 1)), 1) * max(multiple, 1)
    for start in range(0, count, step):
        yield min(step, count - start)


def read_exactly(stream: Any, array: np.ndarray) -> None:
    """Fill an array from a stream.

    Raises:
        EOFError: If the stream ends early.
    """
    target = array.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(target):
        count = stream.readinto(target[done : done + 2**24])
        if not count:
            raise EOFError("the file ends early")
        done += count


class OpenFile:
    """Base class of sources that are one open file; see `TensorSource` for the attributes.

    Args:
        path: The file.
    """

    def __init__(self, path: str):
        self.path = path
        self.tensors: dict[str, TensorInfo] = {}
        self.config: dict[str, Any] | None = None
        self.metadata: dict[str, Any] = {}
        self._file: BinaryIO = open(path, "rb")  # noqa: SIM115 (closed by `close`)
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            self._read_headers()
        except BaseException:
            self._file.close()
            raise

    def _read_headers(self) -> None:
        """Fill in `tensors`, and `config` and `metadata` if the file has them."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class RawTensors(OpenFile):
    """Base class of files that hold uncompressed tensors."""

    def _place(self, name: str) -> tuple[int, np.dtype]:
        """Return where a tensor begins, and its stored dtype."""
        raise NotImplementedError

    def read(self, name: str) -> np.ndarray:
        """Return the tensor `name`."""
        offset, dtype = self._place(name)
        array = np.empty(self.tensors[name].shape, dtype)
        self._file.seek(offset)
        self._fill(array, name)
        return array.astype(self.tensors[name].dtype, copy=False)

    def blocks(self, name: str, multiple: int = 1, verify: bool = True) -> Iterator[np.ndarray]:
        """Yield the tensor's elements in blocks; see `TensorSource`."""
        offset, dtype = self._place(name)
        for count in block_sizes(math.prod(self.tensors[name].shape), dtype.itemsize, multiple):
            block = np.empty(count, dtype)
            self._file.seek(offset)
            self._fill(block, name)
            offset += block.nbytes
            yield block.astype(self.tensors[name].dtype, copy=False)

    def _fill(self, array: np.ndarray, name: str) -> None:
        try:
            read_exactly(self._file, array)
        except (EOFError, OSError) as error:
            raise CheckpointError(f"{self.path} ends inside tensor {name!r}; fetch it again.") from error

    def is_row_major(self, name: str) -> bool:
        """Return whether the elements are stored row by row: they always are."""
        return True


def parse_json(data: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object; refuse oversized, malformed and deeply nested input.

    Args:
        data: UTF-8 bytes.
        what: Name of the file or header, for messages.

    Raises:
        CheckpointError: If the bytes are not a JSON object.
    """
    if len(data) > MAX_JSON_BYTES:
        raise CheckpointError(f"{what} holds {len(data)} bytes of JSON; at most {MAX_JSON_BYTES} are read.")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{what} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} must hold a JSON object. Received: {type(value).__name__}.")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


def check_shape(shape: Any, name: str, path: str) -> tuple[int, ...]:
    """Return `shape` as a tuple of non-negative ints of at most `MAX_DIMENSIONS`."""
    valid = isinstance(shape, (list, tuple)) and all(type(size) is int and 0 <= size < 2**48 for size in shape)
    if not valid or len(shape) > MAX_DIMENSIONS:
        raise CheckpointError(f"{path}: tensor {name[:100]!r} has no valid shape. Received: shape={str(shape)[:100]}.")
    return tuple(shape)
