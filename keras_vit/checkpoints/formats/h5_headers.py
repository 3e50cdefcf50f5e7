"""List the tensors of a Keras weights file: a program that runs with bounded memory and time.

The HDF5 library trusts its input: a damaged file can make it loop, take gigabytes or crash. Here, that ends this
process only. `keras.py` starts it, and then reads the data itself at the listed places.

Usage: `python h5_headers.py FILE START SIZE`, which prints JSON. It imports nothing of the package, to start quickly.
"""

import io
import json
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

import h5py

_MAX_DEPTH = 12
_MAX_TENSORS = 20_000
_ADDRESSES, _MEMORY = 2**30, 200 * 2**20  # bytes
_SECONDS = 20


def list_tensors(file: BinaryIO | io.RawIOBase, size: int) -> list[dict[str, Any]]:
    """Return the tensors of an open file as dictionaries."""
    found: list[dict[str, Any]] = []
    with h5py.File(file, "r") as h5:
        _walk(h5, [], 0, size, found)
    return found


def _walk(group, layers, depth, size, found):
    if depth > _MAX_DEPTH:
        raise ValueError(f"groups are nested more than {_MAX_DEPTH} deep")
    for key in group:
        if depth == 0 and key in ("optimizer", "vars"):
            continue
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            raise ValueError(f"{group.name}/{key} links to another place")
        child = group[key]
        if not isinstance(child, h5py.Group) or key == "vars":
            continue
        names = layers
        own = child.get("vars", getlink=True)
        if isinstance(own, h5py.HardLink):
            own = child["vars"]
            name = own.attrs.get("name", key)
            names = [*layers, name.decode() if isinstance(name, bytes) else str(name)]
            for index in own:
                if not isinstance(own.get(index, getlink=True), h5py.HardLink):
                    raise ValueError(f"{own.name}/{index} links to another place")
                found.append(_describe(own[index], names, index, size))
                if len(found) > _MAX_TENSORS:
                    raise ValueError(f"more than {_MAX_TENSORS} tensors")
        _walk(child, names, depth + 1, size, found)


def _describe(dataset, layers, index, size):
    if not isinstance(dataset, h5py.Dataset) or dataset.is_virtual or dataset.external or dataset.chunks:
        raise ValueError(f"{dataset.name} is not stored as Keras stores tensors")
    offset = dataset.id.get_offset()
    if offset is None or offset < 0 or offset + dataset.nbytes > size:
        raise ValueError(f"{dataset.name} of {dataset.nbytes} bytes reaches beyond the file of {size} bytes")
    return {
        "layers": layers,
        "index": index,
        "shape": list(dataset.shape),
        "dtype": "bfloat16" if dataset.attrs.get("dtype") == "bfloat16" else dataset.dtype.str,
        "offset": int(offset),
        "nbytes": int(dataset.nbytes),
    }


class Window(io.RawIOBase):
    """Read-only part of a file as a file."""

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

    def readinto(self, buffer: Any) -> int:
        count = max(min(len(buffer), self._size - self._position), 0)
        self._file.seek(self._start + self._position)
        count = self._file.readinto(memoryview(buffer)[:count])  # type: ignore[attr-defined]
        self._position += count
        return count


def _limit_resources():
    try:
        import resource
    except ImportError:  # on Windows, only the caller's time limit holds
        return
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(argv: Sequence[str]) -> None:
    """Print {"tensors": [...]} or {"error": "..."}."""
    _limit_resources()
    path, start, size = argv[1], int(argv[2]), int(argv[3])
    try:
        with open(path, "rb") as file:
            result: dict[str, Any] = {"tensors": list_tensors(Window(file, start, size), size)}
    except Exception as error:  # noqa: BLE001 (whatever the library raises is the answer)
        result = {"error": f"{type(error).__name__}: {error}"[:500]}
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv)
