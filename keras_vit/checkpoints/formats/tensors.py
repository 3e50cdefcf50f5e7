"""The interface of the formats: read all headers first, then one tensor at a time. The error of all formats."""

import json
import os
from typing import Any, NamedTuple

import numpy as np

MAX_JSON_BYTES = 16 * 2**20  # the largest configuration, with 21,843 class names, has 2 MiB
MAX_DIMENSIONS = 8
MAX_NAME_LENGTH = 1024
PICKLE = (
    "{path} is a PyTorch pickle, which can run code when it is read, so it is never loaded. If you trust it, convert "
    "it: `safetensors.torch.save_file(torch.load(path, weights_only=True, map_location='cpu'), 'model.safetensors')`, "
    'with `["model"]` after `torch.load(...)` if the tensors are under that name. '
    "Or fetch the .safetensors file of the same model."
)


class CheckpointError(ValueError):
    """Raised if a checkpoint cannot be read, does not fit the model, or cannot be written.

    The message explains what to do.

    Example:
    >>> keras_vit.load_checkpoint(model, "images/cat.png")
    Traceback (most recent call last):
    keras_vit.checkpoints.CheckpointError: images/cat.png is not a supported checkpoint ...
    """


class TensorInfo(NamedTuple):
    """Header of one stored tensor."""

    shape: tuple[int, ...]
    dtype: np.dtype  # of the array that `read` returns


class TensorSource:
    """An open checkpoint file, with headers by name and tensors on demand. Base class of the formats."""

    def __init__(self, path: str):
        self.path = path
        self.files = [path]  # all files that were read
        self.tensors: dict[str, TensorInfo] = {}
        self.config: dict[str, Any] | None = None  # `config.json`
        self.preprocessor: dict[str, Any] | None = None  # `preprocessor_config.json`
        self.metadata: dict[str, Any] = {}  # written by `keras_vit.save_checkpoint`, or empty
        self._file = open(path, "rb")  # noqa: SIM115 (closed by `close`)
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            self._read_headers()
        except BaseException:
            self.close()
            raise

    def _read_headers(self) -> None:
        """Set `tensors`, and `config` and `metadata` if the file contains them."""
        raise NotImplementedError

    def read(self, name: str) -> np.ndarray:
        """Return one tensor."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def parse_json(data: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object. Oversized, malformed and deeply nested input is refused."""
    if len(data) > MAX_JSON_BYTES:
        raise CheckpointError(f"{what} has {len(data)} bytes of JSON; at most {MAX_JSON_BYTES} are read.")
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{what} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} must be a JSON object. Received: {type(value).__name__}.")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


def check_shape(shape: Any, name: str, path: str) -> tuple[int, ...]:
    """Return `shape` as a tuple, after checking that it has at most `MAX_DIMENSIONS` non-negative integers."""
    valid = isinstance(shape, (list, tuple)) and all(type(size) is int and 0 <= size < 2**48 for size in shape)
    if not valid or len(shape) > MAX_DIMENSIONS:
        raise CheckpointError(f"{path}: tensor {name[:100]!r} has no valid shape. Received: shape={str(shape)[:100]}.")
    return tuple(shape)
