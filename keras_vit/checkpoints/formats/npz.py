"""`.npz` checkpoints: zip archives of `.npy` arrays, read and written one tensor at a time.

NumPy's reader would do for trusted files. This one bounds every size before it takes memory, and knows bfloat16.
"""

import contextlib
import io
import json
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, NamedTuple

import ml_dtypes
import numpy as np

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.formats.tensors import (
    MAX_NAME_LENGTH,
    OpenFile,
    TensorInfo,
    block_sizes,
    check_shape,
    parse_json,
    read_exactly,
)

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_MAX_DIRECTORY_BYTES = 64 * 2**20
_MAX_EXPANSION = 20  # trained weights compress much less
_ALWAYS_ALLOWED_BYTES = 256 * 2**20
_MAX_HEADER_BYTES = 10_000
_COMMENT_PREFIX = b"keras_vit:"
_HEADER = re.compile(
    rb"\{\s*'descr'\s*:\s*'(?P<descr>[<>|=]?[a-zA-Z]\d{0,9})'\s*,\s*'fortran_order'\s*:\s*(?P<fortran>True|False)\s*,"
    rb"\s*'shape'\s*:\s*\((?P<shape>[\d\sL,]*)\)\s*,?\s*\}\s*"
)


class NpzSource(OpenFile):
    """Open `.npz` file.

    Args:
        path: The file.

    Raises:
        CheckpointError: If it is damaged, or not a plain archive of numeric arrays.
    """

    def _read_headers(self) -> None:
        self._archive = open_archive(self._file, self._size, self.path)
        self._members: dict[str, _Member] = {}
        for info in self._archive.infolist():
            self._add(info)
        comment = self._archive.comment
        if comment.startswith(_COMMENT_PREFIX):
            self.metadata |= parse_json(comment[len(_COMMENT_PREFIX) :], f"{self.path}: the archive's comment")

    def _add(self, info: zipfile.ZipInfo) -> None:
        name = info.filename.removesuffix(".npy")
        if name == info.filename or name in self._members or len(name) > MAX_NAME_LENGTH:
            raise CheckpointError(
                f"{self.path}: every member of an .npz checkpoint must be a differently named .npy array. "
                f"Received: {info.filename[:100]!r}."
            )
        with _guarded(self.path, name), self._archive.open(info) as stream:
            descr, fortran_order, shape, header_size = _read_npy_header(stream, name, self.path)
        if descr[-1:] == "O" or "O" in descr:
            raise CheckpointError(
                f"{self.path}: member {name!r} holds pickled Python objects, which can run code when they are read; "
                "they are never loaded. Save plain arrays: np.savez(path, **{name: np.asarray(value)})."
            )
        dtype = _numpy_dtype(descr, name, self.path)
        payload = info.file_size - header_size
        if math.prod(shape) * dtype.itemsize != payload:
            raise CheckpointError(
                f"{self.path}: member {name!r} holds {payload} bytes, but its header says shape={shape}, dtype={dtype}."
            )
        native = BFLOAT16 if dtype.kind == "V" and dtype.itemsize == 2 else dtype.newbyteorder("=")
        self._members[name] = _Member(info, dtype, fortran_order, header_size)
        if dtype.kind == "U" and name.split("/")[-1] == "__meta__" and info.file_size < 2**20:
            # A description beside the tensors, as JSON text in an array of its own.
            text = str(self._read_text(name))
            self.metadata["image"] = parse_json(text.encode(), f"{self.path}: {name}").get("image")
            return
        self.tensors[name] = TensorInfo(shape, native)

    def _read_text(self, name: str) -> str:
        """Return the text of an array without dimensions."""
        member = self._members[name]
        with _guarded(self.path, name):
            data = self._archive.read(member.info)[member.header_size :]
        return str(np.frombuffer(data, member.dtype)[0]) if data else "{}"

    def read(self, name: str) -> np.ndarray:
        """Return the tensor `name`."""
        member, shape = self._members[name], self.tensors[name].shape
        array = np.empty(shape[::-1] if member.fortran_order else shape, member.dtype)
        with _guarded(self.path, name), self._payload(member) as (stream, _):
            read_exactly(stream, array)
        array = _native(array)
        return array.T if member.fortran_order else array

    def blocks(self, name: str, multiple: int = 1, verify: bool = True) -> Iterator[np.ndarray]:
        """Yield the tensor's elements in blocks; see `TensorSource`."""
        member = self._members[name]
        with _guarded(self.path, name), self._payload(member) as (stream, checksum):
            for count in block_sizes(math.prod(self.tensors[name].shape), member.dtype.itemsize, multiple):
                block = np.empty(count, member.dtype)
                end = stream.tell() + block.nbytes
                read_exactly(stream, block)
                checksum = zlib.crc32(block.view(np.uint8).data, checksum) if verify else checksum
                yield _native(block)
                if member.info.compress_type == zipfile.ZIP_STORED:
                    stream.seek(end)  # other tensors may have been read meanwhile
            if verify and checksum != member.info.CRC:
                raise zipfile.BadZipFile("bad CRC")

    def is_row_major(self, name: str) -> bool:
        """Return whether the elements are stored row by row."""
        return not self._members[name].fortran_order

    @contextlib.contextmanager
    def _payload(self, member: "_Member") -> Iterator[tuple[Any, int]]:
        """Open a member behind its `.npy` header; yield the stream and the checksum of the header.

        Uncompressed members are read from the file itself: `zipfile` would take twice as long.
        """
        if member.info.compress_type != zipfile.ZIP_STORED:
            with self._archive.open(member.info) as stream:
                yield stream, zlib.crc32(stream.read(member.header_size))
            return
        self._file.seek(member.info.header_offset)
        local = self._file.read(30)
        if len(local) < 30 or local[:4] != b"PK\x03\x04":
            raise zipfile.BadZipFile("bad local header")
        self._file.seek(sum(struct.unpack("<HH", local[26:30])), os.SEEK_CUR)
        yield self._file, zlib.crc32(self._file.read(member.header_size))

    def close(self) -> None:
        """Close the file."""
        self._archive.close()
        super().close()


class _Member(NamedTuple):
    info: zipfile.ZipInfo
    dtype: np.dtype
    fortran_order: bool
    header_size: int


@contextlib.contextmanager
def _guarded(path: str, name: str) -> Iterator[None]:
    """Turn what damaged archives raise into one clear error."""
    try:
        yield
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        RuntimeError,
        NotImplementedError,
        struct.error,
    ) as error:
        raise CheckpointError(
            f"{path}: member {name[:100]!r} is damaged or truncated ({error}). Fetch the file again."
        ) from error


def open_archive(file: IO[bytes], size: int, path: str) -> zipfile.ZipFile:
    """Open a zip archive after checking that its directory is small and agrees with the file.

    Raises:
        CheckpointError: If it is damaged, truncated or made to expand.
    """
    tail_size = min(size, 65_557)
    file.seek(size - tail_size)
    tail = file.read(tail_size)
    end = tail.rfind(b"PK\x05\x06")
    if end < 0 or len(tail) - end < 22:
        raise CheckpointError(f"{path} is not a complete zip archive: it is truncated or damaged. Fetch it again.")
    directory_bytes = struct.unpack("<I", tail[end + 12 : end + 16])[0]
    if min(directory_bytes, size) > _MAX_DIRECTORY_BYTES:
        raise CheckpointError(f"{path}: the archive's directory takes {directory_bytes} bytes; refused.")
    with _guarded(path, "(directory)"):
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
            raise CheckpointError(
                f"{path}: member {info.filename[:100]!r} is encrypted or compressed in an unread way."
            )
        stored = info.compress_type == zipfile.ZIP_STORED
        if info.header_offset < end or (stored and info.compress_size != info.file_size):
            raise CheckpointError(f"{path}: the archive's members overlap or disagree about their sizes; refused.")
        end = info.header_offset + 30 + info.compress_size
        total += info.file_size
    if end > size:
        raise CheckpointError(f"{path} is truncated: its directory reaches beyond its {size} bytes. Fetch it again.")
    if total > max(_ALWAYS_ALLOWED_BYTES, _MAX_EXPANSION * size):
        raise CheckpointError(
            f"{path} would expand from {size} to {total} bytes; no trained weights compress that well (a zip bomb?)."
        )


def _read_npy_header(stream: IO[bytes], name: str, path: str) -> tuple[str, bool, tuple[int, ...], int]:
    """Return (dtype code, fortran order, shape, header size) of a `.npy` member."""
    magic = stream.read(8)
    if len(magic) != 8 or magic[:6] != b"\x93NUMPY" or magic[6] not in (1, 2, 3):
        raise CheckpointError(f"{path}: member {name[:100]!r} is not a .npy array.")
    length_size = 2 if magic[6] == 1 else 4
    raw_length = stream.read(length_size)
    length = int.from_bytes(raw_length, "little")
    if len(raw_length) != length_size or length > _MAX_HEADER_BYTES:
        raise CheckpointError(f"{path}: the header of member {name[:100]!r} takes {length} bytes; refused.")
    header = stream.read(length)
    match = _HEADER.fullmatch(header) if len(header) == length else None
    if match is None:
        raise CheckpointError(f"{path}: member {name[:100]!r} has no plain .npy header; structured types are not read.")
    sizes = [part.strip().rstrip(b"L") for part in match["shape"].split(b",") if part.strip()]
    if not all(size.isdigit() and len(size) < 16 for size in sizes):
        raise CheckpointError(f"{path}: member {name[:100]!r} has no valid shape.")
    shape = check_shape([int(size) for size in sizes], name, path)
    return match["descr"].decode(), match["fortran"] == b"True", shape, 8 + length_size + length


def _numpy_dtype(descr: str, name: str, path: str) -> np.dtype:
    try:
        dtype = np.dtype(descr)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: member {name!r} has an unknown dtype {descr!r}.") from error
    if dtype.kind not in "fiubUSV" or dtype.itemsize == 0:
        raise CheckpointError(f"{path}: member {name!r} has dtype {descr!r}; only real numbers are read.")
    return dtype


def _native(array: np.ndarray) -> np.ndarray:
    """Return bfloat16 under its name, and numbers in native byte order."""
    if array.dtype.kind == "V":
        return array.view(BFLOAT16)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def write_npz(
    path: str, names: Iterable[str], produce: Callable[[str], np.ndarray], metadata: dict[str, Any] | None = None
) -> None:
    """Write an `.npz` archive, one tensor at a time.

    Args:
        path: Where to write.
        names: The members' names, in order.
        produce: Returns the array of a name; called once for each.
        metadata: Stored as the archive's comment, which NumPy and other readers ignore.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name in names:
            array = np.asanyarray(produce(name), order="C")
            if array.dtype == BFLOAT16:
                array = array.view("V2")  # how bfloat16 is stored in this format
            info = zipfile.ZipInfo(f"{name}.npy")  # a fixed date: equal weights give equal files
            with archive.open(info, "w", force_zip64=True) as member:
                header = io.BytesIO()
                np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
                member.write(header.getvalue())
                member.write(array.reshape(-1).view(np.uint8).data)
        if metadata:
            comment = _COMMENT_PREFIX + json.dumps(metadata, sort_keys=True).encode()
            if len(comment) < 65_536:
                archive.comment = comment
