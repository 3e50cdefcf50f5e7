"""Keras' `.keras` and `.weights.h5` files, read tensor by tensor under the names of the variables.

Nothing of the file is executed: the configuration is data, and a process with bounded memory and time finds the places
of the tensors (`h5_headers.py`).
"""

import collections
import json
import math
import os
import subprocess
import sys
import zipfile
import zlib
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.formats import h5_headers
from keras_vit.checkpoints.formats.npz import DAMAGE, open_archive
from keras_vit.checkpoints.formats.tensors import (
    MAX_JSON_BYTES,
    MAX_NAME_LENGTH,
    TensorInfo,
    TensorSource,
    check_shape,
    parse_json,
)
from keras_vit.layers.dense import PREFIX

_WEIGHTS = "model.weights.h5"
_MAX_SECONDS = 60
# Variables of a layer in their order, if they are not a kernel and a bias.
_SCALE = ("scale", "bias")  # of other layers with "norm" in their names, and of `gn`
_VARIABLES = {
    "gn": _SCALE,
    "LayerScale": ("gamma",),
    "MAPHead": ("probe",),
    "MultiHeadDotProductAttention": ("relative_embedding",),
    "cls": ("cls",),
    "dist": ("dist",),
    "registers": ("registers",),
    "mask_token": ("mask_token",),
    "decoder_posembed": ("pos_embedding",),
    "head_norm": ("moving_mean", "moving_variance"),
}


class KerasSource(TensorSource):
    """Open `.keras` or `.weights.h5` file."""

    def _read_headers(self) -> None:
        self._places: dict[str, tuple[int, np.dtype]] = {}
        headers = read_headers(self._file, self._size, self.path)
        self.config, self._start = headers.config, headers.start
        counts = collections.Counter("/".join(entry["layers"]) for entry in headers.tensors)
        for entry in headers.tensors:
            self._add(entry, counts["/".join(entry["layers"])])

    def _add(self, entry: dict[str, Any], count: int) -> None:
        layers, index = entry["layers"], entry["index"]
        if "seed_generator" in layers[-1] or index.startswith(PREFIX):  # the kernel in the file contains LoRA already
            return
        names = _variable_names(layers[-1], count)
        position = int(index) if index.isdigit() and len(index) < 4 else -1
        name = "/".join([*layers, names[position]]) if 0 <= position < len(names) else ""
        if not name or name in self.tensors or len(name) > MAX_NAME_LENGTH:
            raise CheckpointError(f"{self.path}: {'/'.join(layers)[:200]}/{index} is no variable of a keras_vit model.")
        shape = check_shape(entry["shape"], name, self.path)
        try:
            dtype = np.dtype(ml_dtypes.bfloat16 if entry["dtype"] == "bfloat16" else entry["dtype"])
        except TypeError as error:
            raise CheckpointError(f"{self.path}: {name!r} has an unknown dtype.") from error
        if math.prod(shape) * dtype.itemsize != entry["nbytes"] or (dtype.kind not in "fiub" and dtype.itemsize != 2):
            raise CheckpointError(f"{self.path}: {name!r} has dtype {dtype}; only real numbers are read.")
        self._places[name] = entry["offset"], dtype
        self.tensors[name] = TensorInfo(shape, dtype.newbyteorder("=") if dtype.kind in "fiu" else dtype)

    def read(self, name: str) -> np.ndarray:
        """Return the tensor `name`."""
        offset, dtype = self._places[name]
        array = np.empty(self.tensors[name].shape, dtype)
        self._file.seek(self._start + offset)
        if self._file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:
            raise CheckpointError(f"{self.path} ends inside tensor {name!r}; fetch it again.")
        return array.astype(self.tensors[name].dtype, copy=False)


class Headers(NamedTuple):
    """Headers of a `.keras` or `.weights.h5` file.

    Attributes:
        config: Configuration of the model; None for weights without one.
        start: Where the weights begin in the file.
        tensors: Layers, index, shape, dtype, offset and number of bytes of each tensor.
    """

    config: dict[str, Any] | None
    start: int
    tensors: list[dict[str, Any]]


def read_headers(file: BinaryIO, size: int, path: str) -> Headers:
    """Read the headers of a file that Keras wrote, in bounded memory and time."""
    file.seek(0)
    if file.read(4) != b"PK\x03\x04":
        return Headers(None, 0, _list_tensors(path, 0, size))
    config, start, weights_size = _open_archive(file, size, path)
    return Headers(config, start, _list_tensors(path, start, weights_size))


def _open_archive(file: BinaryIO, size: int, path: str) -> tuple[dict[str, Any], int, int]:
    """Return the configuration, and the start and the size of the weights, which are stored in one piece."""
    with open_archive(file, size, path) as archive:
        try:
            config, weights = archive.getinfo("config.json"), archive.getinfo(_WEIGHTS)
            if config.file_size > MAX_JSON_BYTES:
                raise CheckpointError(f"{path}: config.json takes {config.file_size} bytes; refused.")
            parsed = parse_json(archive.read(config), f"{path}: config.json")
        except CheckpointError:
            raise
        except (KeyError, *DAMAGE) as error:
            raise CheckpointError(f"{path} is a damaged or truncated .keras file ({error}).") from error
    if weights.compress_type != zipfile.ZIP_STORED:
        raise CheckpointError(f"{path}: {_WEIGHTS} is compressed, which Keras never does; refused.")
    file.seek(weights.header_offset + 26)
    lengths = file.read(4)
    start = weights.header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
    if start + weights.file_size > size:
        raise CheckpointError(f"{path} is truncated: {_WEIGHTS} reaches beyond its end.")
    _check_sum(file, start, weights, path)
    return parsed, start, weights.file_size


def _check_sum(file: BinaryIO, start: int, weights: zipfile.ZipInfo, path: str) -> None:
    file.seek(start)
    remaining, checksum = weights.file_size, 0
    while remaining:
        block = file.read(min(remaining, 2**22))
        if not block:
            break
        checksum, remaining = zlib.crc32(block, checksum), remaining - len(block)
    if remaining or checksum != weights.CRC:
        raise CheckpointError(f"{path}: {_WEIGHTS} is damaged (wrong checksum). Fetch the file again.")


def _list_tensors(path: str, start: int, size: int) -> list[dict[str, Any]]:
    """Return the headers and places of the tensors, which another process finds."""
    if not sys.executable:
        raise CheckpointError(f"{path}: Keras files are read with the help of a Python process, and there is none.")
    # -P: nothing of the current directory is imported.
    command = [sys.executable, "-P", h5_headers.__file__, os.path.abspath(path), str(start), str(size)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # threads take memory
    try:
        result = subprocess.run(command, capture_output=True, timeout=_MAX_SECONDS, check=False, env=environment)
    except subprocess.TimeoutExpired as error:
        raise CheckpointError(f"{path}: reading its structure took more than {_MAX_SECONDS} s. Damaged?") from error
    try:
        answer = json.loads(result.stdout)
    except ValueError as error:
        raise CheckpointError(
            f"{path} is damaged: reading its structure ended with status {result.returncode}. Fetch the file again."
        ) from error
    if "error" in answer:
        raise CheckpointError(f"{path} is a damaged or truncated Keras file ({answer['error']}).")
    return answer["tensors"]


def _variable_names(layer: str, count: int) -> tuple[str, ...]:
    if layer.startswith("posembed"):
        learned2d = ("pos_embedding_y", "pos_embedding_x", "pos_embedding_prefix")
        return ("pos_embedding",) if count == 1 else learned2d
    if "norm" in layer.lower() and layer not in _VARIABLES:
        return _SCALE
    kind = layer.rstrip("0123456789").rstrip("_")
    if kind in ("gn_root", "gn_proj"):
        kind = "gn"
    return _VARIABLES.get(layer) or _VARIABLES.get(kind) or ("kernel", "bias")
