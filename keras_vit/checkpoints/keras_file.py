"""Reading Keras's own `.keras` and `.weights.h5` files tensor by tensor, by the names of the variables.

Nothing of the file is executed: the configuration is data, links that lead elsewhere are refused.
"""

import io
import os
import zipfile
from typing import Any, BinaryIO

import h5py
import ml_dtypes
import numpy as np

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.source import MAX_JSON_BYTES, TensorInfo, parse_json

_WEIGHTS = "model.weights.h5"
_MAX_DEPTH = 12
_MAX_TENSORS = 100_000
# The variables of a layer in their order, where they are not a kernel and a bias.
_SCALE = ("scale", "bias")
_VARIABLES = {
    "LayerNorm": _SCALE,
    "encoder_norm": _SCALE,
    "fc_norm": _SCALE,
    "gn": _SCALE,
    "norm-pre-head": _SCALE,
    "LayerScale": ("gamma",),
    "MAPHead": ("probe",),
    "MultiHeadDotProductAttention": ("relative_embedding",),
    "cls": ("cls",),
    "dist": ("dist",),
    "registers": ("registers",),
}


class KerasSource:
    """An open `.keras` or `.weights.h5` file.

    Args:
        path: The file.

    Raises:
        CheckpointError: If it is damaged, or not a model of this package.
    """

    def __init__(self, path: str):
        self.path = path
        self.config: dict[str, Any] | None = None
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self._datasets: dict[str, h5py.Dataset] = {}
        self._raw = open(path, "rb")  # noqa: SIM115 (closed by `close`)
        self._h5: h5py.File | None = None
        try:
            self._size = os.fstat(self._raw.fileno()).st_size
            stream: Any = self._raw
            if self._raw.read(4) == b"PK\x03\x04":
                stream = self._open_archive()
            self._raw.seek(0)
            self._h5 = h5py.File(stream, "r")
            self._walk(self._h5, "", 0)
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, zipfile.BadZipFile, EOFError) as error:
            self.close()
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{path} is no readable Keras file: damaged or truncated ({error}).") from error
        except BaseException:
            self.close()
            raise

    def _open_archive(self) -> BinaryIO:
        with zipfile.ZipFile(self._raw) as archive:
            config = archive.getinfo("config.json")
            if config.file_size > MAX_JSON_BYTES:
                raise CheckpointError(f"{self.path}: config.json takes {config.file_size} bytes; refused.")
            self.config = parse_json(archive.read(config), f"{self.path}: config.json")
            weights = archive.getinfo(_WEIGHTS)
            if weights.compress_type != zipfile.ZIP_STORED or weights.compress_size != weights.file_size:
                raise CheckpointError(f"{self.path}: {_WEIGHTS} is compressed, which Keras never does; refused.")
            start = weights.header_offset + 30
            self._raw.seek(weights.header_offset + 26)
            lengths = self._raw.read(4)
            start += int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
        if start + weights.file_size > self._size:
            raise CheckpointError(f"{self.path} is truncated: {_WEIGHTS} reaches beyond its end.")
        return _Window(self._raw, start, weights.file_size)

    def _walk(self, group: h5py.Group, prefix: str, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise CheckpointError(f"{self.path}: groups are nested more than {_MAX_DEPTH} deep; refused.")
        for key in group:
            if depth == 0 and key in ("optimizer", "vars"):
                continue
            link = group.get(key, getlink=True)
            if not isinstance(link, h5py.HardLink):
                raise CheckpointError(f"{self.path}: {group.name}/{key} links to another place; refused.")
            child = group[key]
            if not isinstance(child, h5py.Group) or key == "vars":
                continue
            name = prefix
            own = child.get("vars")
            if isinstance(own, h5py.Group):
                layer = own.attrs.get("name", key)
                layer = layer.decode() if isinstance(layer, bytes) else str(layer)
                name = f"{prefix}{layer}/"
                self._add(own, name, layer)
            self._walk(child, name, depth + 1)

    def _add(self, group: h5py.Group, prefix: str, layer: str) -> None:
        if "seed_generator" in layer:
            return
        names = _variable_names(layer, len(group))
        for key in group:
            dataset = group[key]
            index = int(key) if key.isdigit() and len(key) < 4 else -1
            if not isinstance(dataset, h5py.Dataset) or not 0 <= index < len(names):
                raise CheckpointError(f"{self.path}: {group.name}/{key} is no variable of a layer of this package.")
            self._check(dataset)
            name = prefix + names[index]
            if name in self._datasets or len(self._datasets) >= _MAX_TENSORS:
                raise CheckpointError(f"{self.path}: two tensors belong to {name!r}; refused.")
            bfloat16 = dataset.attrs.get("dtype") == "bfloat16"
            dtype = np.dtype(ml_dtypes.bfloat16) if bfloat16 else dataset.dtype
            self._datasets[name] = dataset
            self.tensors[name] = TensorInfo(tuple(dataset.shape), dtype)

    def _check(self, dataset: h5py.Dataset) -> None:
        if dataset.is_virtual or dataset.external:
            raise CheckpointError(f"{self.path}: {dataset.name} is stored in another file; refused.")
        if dataset.dtype.kind not in "fiubV" or dataset.nbytes > max(2**24, 20 * self._size):
            raise CheckpointError(
                f"{self.path}: {dataset.name} of {dataset.nbytes} bytes and dtype {dataset.dtype} cannot come from a "
                f"file of {self._size} bytes."
            )

    def read(self, name: str, verify: bool = False) -> np.ndarray:
        """Returns the tensor `name`."""
        try:
            array = self._datasets[name][()]
        except (OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{self.path}: tensor {name!r} is damaged ({error}).") from error
        wanted = self.tensors[name].dtype
        if array.dtype != wanted:
            array = array.view(wanted) if array.dtype.itemsize == wanted.itemsize else array.astype(wanted)
        return array

    def close(self) -> None:
        """Closes the file."""
        if self._h5 is not None:
            self._h5.close()
        self._raw.close()


def _variable_names(layer: str, count: int) -> tuple[str, ...]:
    if layer.startswith("posembed"):
        learned2d = ("pos_embedding_y", "pos_embedding_x", "pos_embedding_prefix")
        return ("pos_embedding",) if count == 1 else learned2d
    kind = layer.rstrip("0123456789").rstrip("_")
    if kind in ("gn_root", "gn_proj"):
        kind = "gn"
    return _VARIABLES.get(layer) or _VARIABLES.get(kind) or ("kernel", "bias")


class _Window(io.RawIOBase):
    """A read-only part of a file as a file of its own."""

    def __init__(self, file: BinaryIO, start: int, size: int):
        self._file, self._start, self._size, self._position = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer) -> int:
        count = max(min(len(buffer), self._size - self._position), 0)
        self._file.seek(self._start + self._position)
        count = self._file.readinto(memoryview(buffer)[:count])
        self._position += count
        return count
