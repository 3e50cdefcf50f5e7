"""Indices of tar files: the offsets, names and labels of their images, kept in files.

To read the headers of a tar file takes as long as to read a tenth of its content. The index of `a.tar` is written to
`a.tar.index.npz`, or to Keras' home directory if the folder is read-only.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_vit.data import splits
from keras_vit.data.readers import npz, tar
from keras_vit.util import file_io

_COLUMNS = 5


class Index(NamedTuple):
    """The images of a tar file, in order.

    `rows`, int64 `[n, 5]`, has the offset and the size of each image, the end of its name in `names`, the hash of the
    name, and the number of its label in `texts`.
    """

    rows: np.ndarray
    names: bytes
    texts: list[str]


class Members(Sequence[tar.Member]):
    """Images in tar files, as arrays. An object for each image would take ten times the memory.

    `rows`, int64 `[n, 5]`, has the number of the tar file of each image in `paths`, the offset and the size, and the
    start and the end of the name in `names`. `hashes`, uint64 `[n]`, are the hashes of the names. `files` and `sizes`,
    int64 `[n]`, are two of the columns.
    """

    def __init__(self, paths: Sequence[str], rows: np.ndarray, names: bytes, hashes: np.ndarray):
        self._paths, self._rows, self._names, self.hashes = paths, rows, names, hashes
        self.files, self.sizes = rows[:, 0], rows[:, 2]

    @classmethod
    def of(cls, paths: Sequence[str], indices: Sequence[Index]) -> "Members":
        """Return the images of several tar files, one file after the other."""
        rows = np.concatenate([index.rows for index in indices])
        files = np.repeat(np.arange(len(paths)), [len(index.rows) for index in indices])
        first = np.cumsum([0, *(len(index.names) for index in indices)])
        stops = rows[:, 2] + first[files]
        rows_of_members = np.column_stack([files, rows[:, :2], np.append(0, stops)[:-1], stops])
        return cls(paths, rows_of_members, b"".join(index.names for index in indices), rows[:, 3].view(np.uint64))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        file, offset, size, start, stop = self._rows[index].tolist()
        return tar.Member(self._paths[file], self._names[start:stop].decode(errors="surrogateescape"), offset, size)

    def at(self, indices: np.ndarray) -> "Members":
        """Return the images with the given indices."""
        return Members(self._paths, self._rows[indices], self._names, self.hashes[indices])

    def read(self, indices: np.ndarray) -> list[bytes]:
        """Return the contents of several images."""
        rows = self._rows[indices, :3].tolist()
        return [tar.content(self._paths[file], offset, size) for file, offset, size in rows]


def key_of(path: str, name: str) -> str:
    """Return the name of an image whose hash determines its split and the order."""
    return f"{os.path.basename(path)}/{name}"


def read(path: str, label: str | None, examples: Callable[[str, str | None], list[tuple[tar.Member, str]]]) -> Index:
    """Return the index of a tar file. `examples` reads the images with their labels if no file has the index."""
    status = os.stat(path)
    source = [os.path.basename(path), status.st_size, status.st_mtime_ns, label]
    for index_path in _index_paths(path):
        with contextlib.suppress(ValueError, OSError, RecursionError):
            return _load(index_path, source)
    index = _index_of(examples(path, label))
    for index_path in _index_paths(path):
        with contextlib.suppress(OSError):
            _save(index_path, source, index)
            break
    return index


def _index_paths(path: str) -> tuple[str, str]:
    """Return the possible paths of the index of a tar file."""
    name = hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()
    return f"{path}.index.npz", os.path.join(file_io.cache_directory(), "tar_indices", f"{name}.npz")


def _index_of(examples: Iterable[tuple[tar.Member, str]]) -> Index:
    members, labels = zip(*examples, strict=True)
    names = [member.name.encode(errors="surrogateescape") for member in members]
    texts = {text: number for number, text in enumerate(dict.fromkeys(labels))}
    columns = (
        np.array([(member.offset, member.size) for member in members], np.int64),
        np.cumsum([len(name) for name in names], dtype=np.int64),
        splits.hashes([key_of(member.path, member.name) for member in members]).view(np.int64),
        np.array([texts[text] for text in labels], np.int64),
    )
    return Index(np.column_stack(columns), b"".join(names), list(texts))


def _save(index_path: str, source: list, index: Index) -> None:
    os.makedirs(os.path.dirname(index_path) or ".", exist_ok=True)
    about = json.dumps({"source": source, "texts": index.texts}).encode()
    with file_io.atomic_file(index_path) as temporary, open(temporary, "wb") as file:
        np.savez(
            file, rows=index.rows, names=np.frombuffer(index.names, np.uint8), about=np.frombuffer(about, np.uint8)
        )


def _load(index_path: str, source: list) -> Index:
    """Return the index in a file. Raises a ValueError if it is invalid, or if the tar file is not `source`."""
    found = npz.arrays(index_path)
    rows, names, about = (found.get(key, np.empty(0)) for key in ("rows", "names", "about"))
    if rows.dtype != np.int64 or rows.ndim != 2 or rows.shape[1] != _COLUMNS or not len(rows):
        raise ValueError(f"{index_path} has no rows.")
    content = json.loads(about.tobytes())
    texts: Any = content.get("texts") if isinstance(content, dict) and content.get("source") == source else None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{index_path} is the index of another file.")
    offsets, sizes, stops, _, labels = rows.T
    inside = (offsets >= 0) & (sizes >= 0) & (offsets <= source[1] - sizes) & (labels >= 0) & (labels < len(texts))
    if not inside.all() or (np.diff(stops, prepend=0) < 0).any() or stops[-1] != names.nbytes:
        raise ValueError(f"{index_path} has offsets outside of its tar file.")
    return Index(rows, names.tobytes(), texts)
