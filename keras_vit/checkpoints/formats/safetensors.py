"""`.safetensors` checkpoints, sharded ones included: a JSON header, then raw little-endian data.

The `safetensors` package maps files into memory, where a file that is cut meanwhile ends the process, and writes
tensors that are all in memory. This module reads and writes one tensor at a time. The whole header is checked first:
sizes, offsets, no holes, no overlaps.
"""

import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.formats.tensors import (
    MAX_JSON_BYTES,
    MAX_NAME_LENGTH,
    RawTensors,
    TensorInfo,
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
_MAX_SHARDS = 256  # each takes a file descriptor


class SafetensorsSource(RawTensors):
    """Open `.safetensors` file.

    Args:
        path: The file.

    Raises:
        CheckpointError: If the header is damaged or does not describe the file exactly.
    """

    def _read_headers(self) -> None:
        self._offsets: dict[str, int] = {}
        size = self._size
        prefix = self._file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(MAX_JSON_BYTES, size - 8):
            raise CheckpointError(
                f"{self.path} is not a complete .safetensors file: its header would take {length} of {size} bytes. "
                "Fetch it again."
            )
        header = parse_json(self._file.read(length), f"{self.path}: the header")
        metadata = header.pop("__metadata__", None) or {}
        if isinstance(metadata, dict) and isinstance(metadata.get(_METADATA_KEY), str):
            self.metadata = parse_json(metadata[_METADATA_KEY].encode(), f"{self.path}: the note in the header")
        start, end = 8 + length, 0
        entries = [self._entry(name, entry) for name, entry in header.items()]
        for name, tensor, first, last in sorted(entries, key=lambda item: (item[2], item[3])):
            if first != end:
                raise CheckpointError(f"{self.path}: the data of tensor {name[:100]!r} overlaps or leaves a hole.")
            end = last
            self.tensors[name] = tensor
            self._offsets[name] = start + first
        if start + end != size:
            raise CheckpointError(
                f"{self.path} is truncated or damaged: its header describes {start + end} bytes, the file has {size}. "
                "Fetch it again."
            )

    def _entry(self, name: str, entry: Any) -> tuple[str, TensorInfo, int, int]:
        if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
            raise CheckpointError(f"{self.path}: the header's entry {name[:100]!r} is malformed.")
        shape = check_shape(entry["shape"], name, self.path)
        offsets = check_shape(entry["data_offsets"], name, self.path)
        dtype = _DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
        if dtype is None or len(name) > MAX_NAME_LENGTH:
            raise CheckpointError(
                f"{self.path}: tensor {name[:100]!r} has dtype {str(entry['dtype'])[:20]!r}. "
                f"Readable: {', '.join(_DTYPES)}."
            )
        if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
            raise CheckpointError(
                f"{self.path}: tensor {name[:100]!r} of shape {shape} and dtype {dtype} cannot lie at {offsets}."
            )
        return name, TensorInfo(shape, dtype), *offsets

    def _place(self, name: str) -> tuple[int, np.dtype]:
        return self._offsets[name], self.tensors[name].dtype


class ShardedSource:
    """Open shards that a `model.safetensors.index.json` names.

    Args:
        index_path: The index file; the shards lie beside it.

    Raises:
        CheckpointError: If the index is malformed, or a shard is missing or holds other tensors.
    """

    def __init__(self, index_path: str):
        self.path = index_path
        self.config: dict[str, Any] | None = None
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self._shards: dict[str, SafetensorsSource] = {}
        self._shard_of: dict[str, str] = {}
        with open(index_path, "rb") as file:
            index = parse_json(file.read(MAX_JSON_BYTES + 1), index_path)
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{index_path} has no 'weight_map' from tensor names to shard files.")
        try:
            for name, shard in weight_map.items():
                self._add(name, shard)
            stray = [
                name
                for shard, source in self._shards.items()
                for name in source.tensors
                if self._shard_of.get(name) != shard
            ]
            if stray:
                raise CheckpointError(
                    f"{index_path}: the shards hold tensors that the index does not name: {stray[:5]}."
                )
        except BaseException:
            self.close()
            raise

    def _add(self, name: str, shard: Any) -> None:
        plain = isinstance(shard, str) and shard == os.path.basename(shard) and "\\" not in shard and "\0" not in shard
        if not plain or shard in ("", ".", ".."):
            raise CheckpointError(
                f"{self.path}: a shard must be a file name in the index's own directory. "
                f"Received: {str(shard)[:100]!r}."
            )
        if shard not in self._shards:
            path = os.path.join(os.path.dirname(self.path), shard)
            if not os.path.isfile(path):
                raise CheckpointError(f"{self.path} names the shard {shard!r}, which is not there. Fetch {path}.")
            if len(self._shards) == _MAX_SHARDS:
                raise CheckpointError(f"{self.path} names more than {_MAX_SHARDS} shards. Merge them into one file.")
            try:
                self._shards[shard] = SafetensorsSource(path)
            except OSError as error:  # such as too many open files
                raise CheckpointError(f"{self.path}: the shard {path} cannot be opened: {error}.") from error
            self.metadata = self.metadata or self._shards[shard].metadata
        if name not in self._shards[shard].tensors:
            raise CheckpointError(f"{self.path} says that {shard!r} holds {name[:100]!r}, but it does not.")
        self.tensors[name] = self._shards[shard].tensors[name]
        self._shard_of[name] = shard

    def read(self, name: str) -> np.ndarray:
        """Return the tensor `name` from its shard."""
        return self._shards[self._shard_of[name]].read(name)

    def blocks(self, name: str, multiple: int = 1, verify: bool = True) -> Iterator[np.ndarray]:
        """Yield the tensor's elements in blocks; see `TensorSource`."""
        return self._shards[self._shard_of[name]].blocks(name, multiple, verify)

    def is_row_major(self, name: str) -> bool:
        """Return whether the elements are stored row by row: they always are."""
        return True

    def close(self) -> None:
        """Close every shard."""
        for shard in self._shards.values():
            shard.close()


def write_safetensors(
    path: str,
    tensors: Mapping[str, TensorInfo],
    produce: Callable[[str], np.ndarray],
    metadata: dict[str, Any] | None = None,
) -> None:
    """Write a `.safetensors` file, one tensor at a time.

    Args:
        path: Where to write.
        tensors: The headers, in the order of the data.
        produce: Returns the array of a name; called once for each.
        metadata: Noted in the header's `__metadata__`, beside `format: pt`.
    """
    codes = {dtype: code for code, dtype in _DTYPES.items()}
    notes = {"format": "pt"}
    if metadata:
        notes[_METADATA_KEY] = json.dumps(metadata, sort_keys=True)
    header: dict[str, Any] = {"__metadata__": notes}
    offset = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": codes[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the data starts at a multiple of eight
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for name, tensor in tensors.items():
            array = np.asanyarray(produce(name), order="C")
            if array.shape != tensor.shape or array.dtype != tensor.dtype:
                raise CheckpointError(f"tensor {name!r} changed while it was written: {array.shape}, {array.dtype}.")
            file.write(array.reshape(-1).view(np.uint8).data)
