"""`.safetensors` checkpoints, including sharded checkpoints.

The `safetensors` package reads the files. The package checks sizes and offsets, but accepts headers of 100 MB and
duplicate names, so this module checks headers first. The package also maps files into memory. Before each read, this
module therefore refuses a file whose size has changed.

For writing, the package would need all tensors in memory. This module instead writes one tensor at a time.
"""

import json
import math
import os
import struct
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from keras_vit.checkpoints.formats.tensors import (
    MAX_JSON_BYTES,
    MAX_NAME_LENGTH,
    CheckpointError,
    TensorInfo,
    TensorSource,
    check_shape,
    parse_json,
)

_DTYPES: Mapping[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_METADATA_KEY = "keras_vit"
_MAX_SHARDS = 256  # each shard needs a file descriptor


class SafetensorsSource(TensorSource):
    """An open `.safetensors` file."""

    _tensors: Any = None  # the file, as opened by the package

    def _read_headers(self) -> None:
        prefix = self._file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(MAX_JSON_BYTES, self._size - 8):
            raise CheckpointError(
                f"{self.path} is not a complete .safetensors file: its header takes {length} of {self._size} bytes."
            )
        parse_json(self._file.read(length), f"{self.path}: the header")
        try:
            self._tensors = safetensors.safe_open(self.path, framework="numpy")
            for name in self._tensors.keys():  # noqa: SIM118 (not a mapping)
                self._add(name, self._tensors.get_slice(name))
            note = (self._tensors.metadata() or {}).get(_METADATA_KEY)
        except safetensors.SafetensorError as error:
            raise CheckpointError(f"{self.path} is truncated or damaged: {error}. Fetch it again.") from error
        if note is not None:
            self.metadata = parse_json(note.encode(), f"{self.path}: the metadata in the header")

    def _add(self, name: str, entry: Any) -> None:
        code = entry.get_dtype()
        dtype = _DTYPES.get(code)
        if dtype is None or len(name) > MAX_NAME_LENGTH:
            raise CheckpointError(f"{self.path}: {name[:100]!r} has dtype {code!r}. Readable: {', '.join(_DTYPES)}.")
        self.tensors[name] = TensorInfo(check_shape(entry.get_shape(), name, self.path), dtype)

    def read(self, name: str) -> np.ndarray:
        """Return the tensor `name`."""
        if os.fstat(self._file.fileno()).st_size != self._size:
            raise CheckpointError(f"{self.path} changed while it was read; fetch it again.")
        return self._tensors.get_tensor(name)

    def close(self) -> None:
        """Close the file."""
        if self._tensors is not None:
            self._tensors.__exit__(None, None, None)
        super().close()


class ShardedSource(TensorSource):
    """The open shards that a `model.safetensors.index.json` lists."""

    def _read_headers(self) -> None:
        self._shards: dict[str, SafetensorsSource] = {}
        self._shard_of: dict[str, str] = {}
        index = parse_json(self._file.read(MAX_JSON_BYTES + 1), self.path)
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{self.path} has no 'weight_map' from tensor names to shard files.")
        for name, shard in weight_map.items():
            self._add(name, shard)

    def _add(self, name: str, shard: Any) -> None:
        plain = isinstance(shard, str) and shard == os.path.basename(shard) and "\\" not in shard and "\0" not in shard
        if not plain or shard in ("", ".", ".."):
            raise CheckpointError(f"{self.path}: shards must be in its own directory. Received: {str(shard)[:100]!r}.")
        if shard not in self._shards:
            path = os.path.join(os.path.dirname(self.path), shard)
            if not os.path.isfile(path):
                raise CheckpointError(f"{self.path} lists the shard {shard!r}, which is missing. Fetch {path}.")
            if len(self._shards) == _MAX_SHARDS:
                raise CheckpointError(f"{self.path} lists more than {_MAX_SHARDS} shards. Merge them into one file.")
            self._shards[shard] = SafetensorsSource(path)
            self.files.append(path)
            self.metadata = self.metadata or self._shards[shard].metadata
        if name not in self._shards[shard].tensors:
            raise CheckpointError(f"{self.path} expects {shard!r} to contain {name[:100]!r}, but it does not.")
        self.tensors[name] = self._shards[shard].tensors[name]
        self._shard_of[name] = shard

    def read(self, name: str) -> np.ndarray:
        """Return the tensor `name` from its shard."""
        return self._shards[self._shard_of[name]].read(name)

    def close(self) -> None:
        """Close the index and every shard."""
        super().close()
        for shard in self._shards.values():
            shard.close()


def write_safetensors(
    path: str,
    tensors: Mapping[str, TensorInfo],
    produce: Callable[[str], np.ndarray],
    metadata: dict[str, Any] | None = None,
) -> None:
    """Write a `.safetensors` file, one tensor at a time. The header contains `format: pt` and `metadata`."""
    codes = {dtype: code for code, dtype in _DTYPES.items()}
    notes = {"format": "pt"}
    if metadata:
        notes[_METADATA_KEY] = json.dumps(metadata, sort_keys=True)
    header: dict[str, Any] = {"__metadata__": notes}
    end = 0
    for name, (shape, dtype) in tensors.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": codes[dtype], "shape": list(shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the data starts at a multiple of eight
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for name, tensor in tensors.items():
            array = np.asanyarray(produce(name), order="C")
            if TensorInfo(array.shape, array.dtype) != tensor:
                raise CheckpointError(f"tensor {name!r} changed while it was written: {array.shape}, {array.dtype}.")
            file.write(array.reshape(-1).view(np.uint8).data)
