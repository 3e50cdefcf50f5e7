"""Indices of TFRecord files: the positions of the records, which make the files random access.

The index of `train-00000-of-00010` is `train-00000-of-00010.idx`. For each record, a line has the position of its first
byte and its size in bytes, with length and checksums, as in the files of NVIDIA DALI's `tfrecord2idx`.
"""

import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO

import numpy as np
import tensorflow as tf

from keras_vit.data.grouped import RandomRecordSource
from keras_vit.data.readers import tar
from keras_vit.data.record_files import Slice
from keras_vit.data.sources import in_parallel
from keras_vit.util import bucket_parts, file_io

EXTENSION = ".idx"
PROGRAM = "keras-vit make-tfrecords --index_only"
_LENGTH, _FRAME = 12, 16  # bytes before the data of a record, and around them: a length and two checksums
_THREADS = 64  # that read indices
_RECORDS = re.compile(r"-of-\d|tfrecord")  # in the names of record files


def is_complete(folder: str) -> bool:
    """Return whether a local folder has record files, each with an index."""
    names = set(os.listdir(folder))
    files = [name for name in names if _RECORDS.search(name) and not name.endswith((EXTENSION, ".json", ".tmp"))]
    return bool(files) and all(f"{name}{EXTENSION}" in names for name in files)


def write(path: str) -> None:
    """Write the index of a local TFRecord file, or of an object whose local copy is empty, next to the file."""
    starts = positions(path).tolist()
    lines = (f"{start} {stop - start}\n" for start, stop in zip(starts, starts[1:], strict=False))
    file_io.write_text(f"{path}{EXTENSION}", "".join(lines))


def read(paths: Sequence[str]) -> list[np.ndarray] | None:
    """Return the positions of the records in each file from its index. Return None if no file has an index."""
    missing = [path for path in paths if not os.path.isfile(f"{_local(path)}{EXTENSION}")]
    if len(missing) == len(paths):
        return None
    if missing:
        raise ValueError(
            f"All {len(paths)} files of a split must have an index, or none. Received: {len(missing)} without an "
            f"index, such as {missing[0]}. {_advice(missing[0])}"
        )
    return list(in_parallel(_read, paths, threads=_THREADS))


def _read(path: str) -> np.ndarray:
    size, index = _size(path), f"{_local(path)}{EXTENSION}"
    if not size and not os.path.getsize(index):
        return np.zeros(1, np.int64)
    if 0 < os.path.getsize(index) <= 2 * size:
        try:
            lines = np.loadtxt(index, np.int64, comments=None, ndmin=2)
        except (ValueError, OverflowError):  # not integers
            lines = np.empty((0, 0), np.int64)
        if lines.shape[1] == 2 and lines.min() >= 0 and lines.max() <= size:
            starts, sizes = lines.T
            found = np.append(0, starts + sizes)
            if sizes.min() >= _FRAME and found[-1] == size and (found[:-1] == starts).all():
                return found
    raise ValueError(f"{index} must be the index of {path} with {size:,} bytes. {_advice(path)}")


def _advice(path: str) -> str:
    output = os.path.dirname(path) if "-of-" in os.path.basename(path) else path  # a folder may have other files
    return (
        f"Write the indices again: {PROGRAM} --output={file_io.shown(output)} The option index=False ignores the "
        "indices."
    )


def positions(path: str) -> np.ndarray:
    """Return the position of each record in a TFRecord file and, last, the size of the file.

    Only the lengths of the records are read. TensorFlow allocates memory for the length that a record claims. Therefore
    this function checks the lengths against the size of the file before TensorFlow opens it.
    """
    local = _local(path)
    if not os.path.isfile(local):
        raise ValueError(f"A TFRecord file must be a regular file. Received: {path}.")
    found, size = [0], _size(local)
    with _open(local) as file:
        while header := file.read(_LENGTH):
            # A record is its length (8 bytes), a checksum (4), the data and another checksum (4).
            end = found[-1] + _FRAME + struct.unpack("<Q", header[:8])[0] if len(header) == _LENGTH else size + 1
            if end > size:
                raise ValueError(f"{path} ends within record {len(found) - 1}, or is not an unpacked TFRecord file.")
            file.seek(end)
            found.append(end)
    return np.array(found)


class IndexedRecordSource(RandomRecordSource):
    """Serialized examples in TFRecord files with indices. `known` has the positions of the records by path."""

    def __init__(
        self,
        name: str,
        split: str,
        slices: Sequence[Slice],
        known: Mapping[str, np.ndarray],
        parse: Callable[[tf.Tensor], dict[str, tf.Tensor]],
        names: Sequence[str],
        label_kind: str,
    ):
        self._slices, self._firsts = slices, np.cumsum([0, *(item.take for item in slices)])
        super().__init__(name, split, int(self._firsts[-1]), lambda content: parse(_data(content)), names, label_kind)
        self._positions = [known[item.path][item.skip : item.skip + item.take + 1] for item in slices]
        sizes = [int(known[item.path][-1]) for item in slices]
        self._paths = [_local(item.path) for item in slices]
        self.is_remote = [os.path.getsize(path) for path in self._paths] != sizes  # the local copies are empty
        if self.is_remote:
            bucket_parts.check()
            self._paths = list(map(file_io.shown, self._paths))
        self.described = [
            f"index of {os.path.basename(item.path)} {size} {item.skip} {item.take}"
            for item, size in zip(slices, sizes, strict=True)
        ]

    def _places(self, numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the number of the slice of each record, and the number of the record in the slice."""
        slices = np.searchsorted(self._firsts, numbers, side="right") - 1
        return zip(slices.tolist(), (np.asarray(numbers) - self._firsts[slices]).tolist(), strict=True)

    def read_records(self, numbers: Sequence[int]) -> Sequence[bytes]:
        parts = [(self._paths[item], *self._positions[item][n : n + 2].tolist()) for item, n in self._places(numbers)]
        if self.is_remote:
            return bucket_parts.read(parts)
        return [tar.content(path, start, stop - start) for path, start, stop in parts]

    def origin(self, index: int) -> str:
        ((item, number),) = self._places([int(self._numbers[index])])
        return f"record {self._slices[item].skip + number} of {self._slices[item].path}"


def _data(content: tf.Tensor) -> tf.Tensor:
    """Return the data of a record with its length and checksums. Fails if the length is wrong."""
    size = tf.strings.length(content)
    length = tf.io.decode_raw(tf.strings.substr(content, 0, tf.where(size < _FRAME, 0, 8)), tf.int64)
    fits = (size >= _FRAME) & tf.reduce_all(length == tf.cast(size - _FRAME, tf.int64))
    text = f"its file cannot be read here, or has changed after its index was written by {PROGRAM}"
    with tf.control_dependencies([tf.debugging.Assert(fits, [text])]):
        return tf.strings.substr(content, _LENGTH, size - _FRAME)


def _local(path: str) -> str:
    return path.removeprefix("file://")


def _is_copy(path: str) -> bool:
    """Return whether a file is the empty local copy of an object in a bucket."""
    return not os.path.getsize(path) and file_io.shown(path) != path


def _size(path: str) -> int:
    path = _local(path)
    return bucket_parts.size(file_io.shown(path)) if _is_copy(path) else os.path.getsize(path)


def _open(path: str) -> BinaryIO:
    return bucket_parts.opened(file_io.shown(path)) if _is_copy(path) else open(path, "rb", buffering=0)
