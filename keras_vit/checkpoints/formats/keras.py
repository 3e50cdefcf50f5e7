"""Keras' `.keras` and `.weights.h5` files, read tensor by tensor.

No code from a file is executed. The configuration is treated as data. The sizes, links and storage of all tensors are
checked before h5py reads the tensors. However, the HDF5 library trusts its input: of 4,500 damaged files, 5 caused an
endless loop and 1 crashed the process. A separate process with limited memory and time therefore visits every object of
a file first.
"""

import collections
import functools
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from keras_vit.checkpoints.formats import hdf5
from keras_vit.checkpoints.formats.npz import DAMAGE, NpzSource, guarded, open_archive
from keras_vit.checkpoints.formats.tensors import (
    MAX_JSON_BYTES,
    MAX_NAME_LENGTH,
    PICKLE,
    CheckpointError,
    TensorInfo,
    TensorSource,
    check_shape,
    parse_json,
)
from keras_vit.layers.dense import PREFIX

_WEIGHTS = "model.weights.h5"
_MAX_DEPTH = 12
_MAX_SECONDS = 600  # for a file system that does not respond; CPU time is limited to 20 s
_STATE = (0, "optimizer")  # depth and name of a group that contains no model weights
# The variables of each layer in order. Layers that are not listed have a kernel and a bias.
_SCALE = ("scale", "bias")  # of `gn`, and of layers with "norm" in their names
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


class KerasFile(TensorSource):
    """A file that Keras wrote. A tensor is named by its layers and its index, such as `"dense/0"`."""

    def _read_headers(self) -> None:
        self._h5: h5py.File | None = None
        self._datasets: dict[str, h5py.Dataset] = {}
        is_archive = self._file.read(4) == b"PK\x03\x04"
        start, size = self._open_archive() if is_archive else (0, self._size)
        self._probe(start, size)
        try:
            self._h5 = h5py.File(hdf5.FilePart(self._file, start, size), "r")
            found = list(_walk(self._h5))
            counts = collections.Counter("/".join(layers) for layers, _, _ in found)
            for layers, index, dataset in found:
                self._add(layers, index, dataset, counts["/".join(layers)])
        except CheckpointError:
            raise
        except Exception as error:  # h5py raises many types of errors for a damaged file
            raise CheckpointError(f"{self.path} is a damaged or truncated Keras file ({error}).") from error

    def _open_archive(self) -> tuple[int, int]:
        """Read the configuration of a `.keras` file, and return the position and the size of its weights file."""
        archive = open_archive(self._file, self._size, self.path)
        try:
            config, weights = archive.getinfo("config.json"), archive.getinfo(_WEIGHTS)
            if config.file_size > MAX_JSON_BYTES:
                raise CheckpointError(f"{self.path}: config.json has {config.file_size} bytes, which is too large.")
            self.config = parse_json(archive.read(config), f"{self.path}: config.json")
        except CheckpointError:
            raise
        except (KeyError, *DAMAGE) as error:
            raise CheckpointError(f"{self.path} is a damaged or truncated .keras file ({error}).") from error
        if weights.compress_type != zipfile.ZIP_STORED:
            raise CheckpointError(f"{self.path}: {_WEIGHTS} is compressed, but Keras never compresses it.")
        with guarded(self.path, _WEIGHTS), archive.open(weights) as member:
            while member.read(2**22):  # the last read compares the checksum
                pass
        return hdf5.data_start(self._file, weights), weights.file_size

    def _probe(self, start: int, size: int) -> None:
        """Refuse a file that the HDF5 library cannot traverse with limited memory and time."""
        # -P: import nothing from the current directory.
        command = [sys.executable, "-P", hdf5.__file__, os.path.abspath(self.path), str(start), str(size)]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # threads take memory
        try:
            subprocess.run(command, capture_output=True, timeout=_MAX_SECONDS, check=True, env=environment)
        except subprocess.TimeoutExpired as error:
            raise CheckpointError(f"{self.path} could not be read within {_MAX_SECONDS} s. Try again.") from error
        except subprocess.CalledProcessError as error:
            lines = error.stderr.decode(errors="replace").strip().splitlines()
            code = error.returncode
            status = signal.Signals(-code).name if code < 0 else f"status {code}"  # SIGXCPU after 20 s
            reason = lines[-1][:300] if lines else status
            raise CheckpointError(f"{self.path} is a damaged or truncated Keras file ({reason}).") from error

    def _add(self, layers: list[str], index: str, dataset: h5py.Dataset, count: int) -> None:
        if not isinstance(dataset, h5py.Dataset) or dataset.is_virtual or dataset.external or dataset.chunks:
            raise ValueError(f"{'/'.join(layers)}/{index} is not stored as Keras stores tensors")
        if dataset.nbytes > self._size or dataset.id.get_offset() is None and dataset.nbytes:
            raise ValueError(f"{dataset.name} of {dataset.nbytes} bytes is larger than the file")
        name = self._name(layers, index, count)
        if name is None:
            return
        if name in self.tensors or len(name) > MAX_NAME_LENGTH:
            raise ValueError(f"{name[:200]} occurs twice, or its name is too long")
        shape = check_shape(list(dataset.shape), name, self.path)
        if dataset.attrs.get("dtype") == "bfloat16" and dataset.dtype.itemsize == 2:
            dtype = np.dtype(ml_dtypes.bfloat16)
        elif dataset.dtype.kind in "fiub":
            dtype = dataset.dtype.newbyteorder("=")
        else:
            raise CheckpointError(f"{self.path}: {name!r} has dtype {dataset.dtype}; only real numbers are read.")
        self.tensors[name], self._datasets[name] = TensorInfo(shape, dtype), dataset

    def _name(self, layers: list[str], index: str, count: int) -> str | None:
        """Return the name of a tensor whose layer has `count` tensors, or None to skip the tensor."""
        return "/".join([*layers, index])

    def read(self, name: str) -> np.ndarray:
        """Return the tensor `name`."""
        dtype = self.tensors[name].dtype
        try:
            array = self._datasets[name][()]
        except (OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{self.path} ends inside tensor {name!r}; fetch it again.") from error
        return array.view(dtype) if dtype.kind == "V" else array.astype(dtype, copy=False)

    def close(self) -> None:
        """Close the file."""
        if self._h5 is not None:
            self._h5.close()
        super().close()


class KerasSource(KerasFile):
    """A file of a keras_vit model. Each tensor has the name of the model's variable."""

    @functools.cached_property
    def _given_head(self) -> Any:
        """Name of a custom head, or None. Only Keras can name the variables of a custom head."""
        value: Any = self.config
        for key in ("config", "head", "config", "name"):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def _name(self, layers: list[str], index: str, count: int) -> str | None:
        if "seed_generator" in layers[-1] or index.startswith(PREFIX):  # the stored kernel already includes LoRA
            return None
        if layers[0] == self._given_head:
            return None
        names = _variable_names(layers[-1], count)
        position = int(index) if index.isdigit() and len(index) < 4 else -1
        if not 0 <= position < len(names):
            raise ValueError(f"{'/'.join(layers)[:200]}/{index} is not a variable of a keras_vit model")
        return "/".join([*layers, names[position]])


def open_zip(path: str) -> TensorSource:
    """Open a `.keras` or `.npz` file. Both are zip archives."""
    with open(path, "rb") as file, open_archive(file, os.path.getsize(path), path) as archive:
        names = archive.namelist()
    if _WEIGHTS in names and "config.json" in names:
        return KerasSource(path)
    if any(name.endswith("data.pkl") for name in names):
        raise CheckpointError(PICKLE.format(path=path))
    return NpzSource(path)


def _walk(root: h5py.Group) -> Iterator[tuple[list[str], str, Any]]:
    """Yield (layer names, index in the layer, tensor) for each tensor. The outermost layer comes first."""
    pending: list[tuple[h5py.Group, list[str], int]] = [(root, [], 0)]
    seen: set[h5py.Group] = set()
    while pending:
        group, layers, depth = pending.pop()
        if depth > _MAX_DEPTH or group in seen:  # circular links would cause an endless loop
            raise ValueError(f"groups have more than {_MAX_DEPTH} levels, or are linked twice")
        seen.add(group)
        members = _members(group)
        own = members.pop("vars", None)
        if isinstance(own, h5py.Group) and depth:
            name = own.attrs.get("name", group.name.split("/")[-1])
            layers = [*layers, name.decode() if isinstance(name, bytes) else str(name)]
            for index, tensor in _members(own).items():
                yield layers, index, tensor
        inner = [child for key, child in members.items() if isinstance(child, h5py.Group) and (depth, key) != _STATE]
        pending += [(child, layers, depth + 1) for child in reversed(inner)]


def _members(group: h5py.Group) -> dict[str, Any]:
    """Return the members of a group. Links to other files or groups are refused."""
    for key in group:
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            raise ValueError(f"{group.name}/{key} links to another object")
    return dict(group.items())


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
