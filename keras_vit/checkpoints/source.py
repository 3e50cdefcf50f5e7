"""What every checkpoint reader offers: headers first, then one tensor at a time."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from keras_vit.checkpoints.errors import CheckpointError

MAX_JSON_BYTES = 16 * 2**20  # far above any model description, far below what could hurt
MAX_DIMENSIONS = 8
MAX_NAME_LENGTH = 1024


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """The header of one stored tensor.

    Attributes:
        shape: Its shape.
        dtype: The dtype that `read` returns.
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class TensorSource(Protocol):
    """An open checkpoint file: a mapping of names to headers, and the tensors on demand.

    Attributes:
        path: What was opened, for messages.
        tensors: Every stored tensor's header, by name.
        config: The description stored with the tensors (`config.json`), if any.
        metadata: What `keras_vit.save_checkpoint` noted in the file, if it wrote it.
    """

    path: str
    tensors: Mapping[str, TensorInfo]
    config: dict[str, Any] | None
    metadata: dict[str, Any]

    def read(self, name: str, verify: bool = False) -> np.ndarray:
        """Returns one tensor; with `verify`, after checking the stored checksum where the format has one."""
        ...

    def close(self) -> None:
        """Closes the file."""
        ...


def parse_json(data: bytes, what: str) -> dict[str, Any]:
    """Returns a JSON object, refusing oversized, malformed, deeply nested and non-object input.

    Args:
        data: UTF-8 bytes.
        what: Where they come from, for messages.

    Raises:
        CheckpointError: If it is not one.
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
    """Returns `shape` as a tuple of non-negative ints of at most `MAX_DIMENSIONS`."""
    valid = isinstance(shape, (list, tuple)) and all(type(size) is int and 0 <= size < 2**48 for size in shape)
    if not valid or len(shape) > MAX_DIMENSIONS:
        raise CheckpointError(f"{path}: tensor {name[:100]!r} has no valid shape. Received: shape={str(shape)[:100]}.")
    return tuple(shape)
