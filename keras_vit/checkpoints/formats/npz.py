"""`.npz` checkpoints: zip archives of `.npy` arrays, read and written with NumPy, one tensor at a time.

The sizes of the archive's directory, members and headers are checked before memory is allocated.
"""

import contextlib
import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

import ml_dtypes
import numpy as np

from keras_vit.checkpoints.formats.tensors import (
    MAX_NAME_LENGTH,
    CheckpointError,
    TensorInfo,
    TensorSource,
    check_shape,
    parse_json,
)

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_VOID2 = np.dtype("V2")  # the dtype of bfloat16 arrays in `.npy` files
_MAX_DIRECTORY_BYTES = 64 * 2**20
_MAX_EXPANSION = 20  # trained weights compress much less
_ALWAYS_ALLOWED_BYTES = 256 * 2**20
_MAX_HEADER_BYTES = 10_000
_COMMENT_PREFIX = b"keras_vit:"
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)  # raised by `zipfile`


class NpzSource(TensorSource):
    """An open `.npz` file."""

    def _read_headers(self) -> None:
        self._archive = open_archive(self._file, self._size, self.path)
        self._members: dict[str, zipfile.ZipInfo] = {}
        for info in self._archive.infolist():
            self._add(info)
        comment = self._archive.comment
        if comment.startswith(_COMMENT_PREFIX):
            self.metadata |= parse_json(comment[len(_COMMENT_PREFIX) :], f"{self.path}: the archive's comment")

    def _add(self, info: zipfile.ZipInfo) -> None:
        name = info.filename.removesuffix(".npy")
        if name == info.filename or name in self._members or len(name) > MAX_NAME_LENGTH:
            raise CheckpointError(
                f"{self.path}: members must be .npy arrays with different names. Received: {info.filename[:100]!r}."
            )
        with guarded(self.path, name), self._archive.open(info) as stream:
            shape, dtype, header_size = _read_npy_header(stream, name, self.path)
        if dtype.hasobject:
            raise CheckpointError(
                f"{self.path}: member {name!r} contains pickled Python objects, which can run code when they are read, "
                "so they are never loaded. Save plain arrays: np.savez(path, **{name: np.asarray(value)})."
            )
        if dtype.kind not in "fiubUSV" or dtype.itemsize == 0 or (dtype.kind == "V" and dtype != _VOID2):
            raise CheckpointError(f"{self.path}: member {name!r} has dtype {dtype}; only real numbers are read.")
        payload = info.file_size - header_size
        if math.prod(shape) * dtype.itemsize != payload:
            raise CheckpointError(f"{self.path}: {name!r} has {payload} bytes, but its header states {shape}, {dtype}.")
        self._members[name] = info
        self.tensors[name] = TensorInfo(shape, BFLOAT16 if dtype == _VOID2 else dtype.newbyteorder("="))

    def read(self, name: str) -> np.ndarray:
        """Return the tensor `name`."""
        with guarded(self.path, name), self._archive.open(self._members[name]) as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)  # zipfile compares the checksum
        dtype = self.tensors[name].dtype
        return array.view(BFLOAT16) if dtype == BFLOAT16 else array.astype(dtype, copy=False)


@contextlib.contextmanager
def guarded(path: str, name: str) -> Iterator[None]:
    """Convert the errors that damaged archives raise to a `CheckpointError`."""
    try:
        yield
    except CheckpointError:
        raise
    except (*DAMAGE, struct.error) as error:
        raise CheckpointError(f"{path}: {name[:100]!r} is damaged or truncated ({error}). Fetch it again.") from error


def open_archive(file: IO[bytes], size: int, path: str) -> zipfile.ZipFile:
    """Open a zip archive, after checking that its directory is small and agrees with the file."""
    tail_size = min(size, 65_557)
    file.seek(size - tail_size)
    tail = file.read(tail_size)
    end = tail.rfind(b"PK\x05\x06")
    if end < 0 or len(tail) - end < 22:
        raise CheckpointError(f"{path} is not a complete zip archive: it is truncated or damaged. Fetch it again.")
    directory_bytes = struct.unpack("<I", tail[end + 12 : end + 16])[0]
    if min(directory_bytes, size) > _MAX_DIRECTORY_BYTES:
        raise CheckpointError(f"{path}: the archive's directory has {directory_bytes} bytes, which is too large.")
    with guarded(path, "(directory)"):
        try:
            archive = zipfile.ZipFile(file)
        except (ValueError, UnicodeDecodeError, OverflowError, MemoryError) as error:
            raise CheckpointError(f"{path} has a damaged zip directory ({error}). Fetch it again.") from error
    _check_members(archive.infolist(), size, path)
    return archive


def _check_members(members: list[zipfile.ZipInfo], size: int, path: str) -> None:
    total, end = 0, 0
    for info in sorted(members, key=lambda member: member.header_offset):
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 0x1:
            raise CheckpointError(f"{path}: {info.filename[:100]!r} is encrypted or uses an unsupported method.")
        stored = info.compress_type == zipfile.ZIP_STORED
        if info.header_offset < end or (stored and info.compress_size != info.file_size):
            raise CheckpointError(f"{path}: the archive's members overlap or have inconsistent sizes. Fetch it again.")
        end = info.header_offset + 30 + info.compress_size
        total += info.file_size
    if end > size:
        raise CheckpointError(f"{path} is truncated: its directory extends beyond its {size} bytes. Fetch it again.")
    if total > max(_ALWAYS_ALLOWED_BYTES, _MAX_EXPANSION * size):
        raise CheckpointError(f"{path} would expand from {size} to {total} bytes. It may be a decompression bomb.")


def _read_npy_header(stream: IO[bytes], name: str, path: str) -> tuple[tuple[int, ...], np.dtype, int]:
    """Return the shape and dtype of a `.npy` member, and the size of its header."""
    head = io.BytesIO(stream.read(_MAX_HEADER_BYTES + 16))
    try:
        version = np.lib.format.read_magic(head)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(head, max_header_size=_MAX_HEADER_BYTES)
        if min(shape, default=0) < 0:
            raise ValueError(f"shape={shape}")
    except Exception as error:  # the parser of Python literals raises many types of errors
        raise CheckpointError(
            f"{path}: member {name[:100]!r} is not a .npy array: it has no plain .npy header ({str(error)[:200]})."
        ) from error
    return check_shape(shape, name, path), dtype, head.tell()


def write_npz(
    path: str, names: Iterable[str], produce: Callable[[str], np.ndarray], metadata: dict[str, Any] | None = None
) -> None:
    """Write an `.npz` archive, one tensor at a time. The metadata becomes a zip comment, which NumPy ignores."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name in names:
            array = np.asanyarray(produce(name), order="C")
            if array.dtype == BFLOAT16:
                array = array.view(_VOID2)
            info = zipfile.ZipInfo(f"{name}.npy")  # a fixed date: equal weights give equal files
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
        if metadata:
            comment = _COMMENT_PREFIX + json.dumps(metadata, sort_keys=True).encode()
            if len(comment) < 65_536:
                archive.comment = comment
