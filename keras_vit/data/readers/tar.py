"""The positions of the files in a tar file.

Python's `tarfile` takes about five times as long, which is several minutes for ImageNet. Before Python 3.12.12,
`tarfile` does not terminate if a header has a negative size (CVE-2025-8194).
"""

import os
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_BLOCK = 512
_MAX_EXTENDED = 2**20  # bytes of an extended header


class Member(NamedTuple):
    """A file of `size` bytes, which begins at the byte `offset` of the tar file `path`."""

    path: str
    name: str
    offset: int
    size: int

    @property
    def origin(self) -> str:
        """Path of the tar file and name of the file in it, for messages."""
        return f"{self.path}/{self.name}"

    def read(self) -> bytes:
        """Return the content of the file."""
        return content(self.path, self.offset, self.size)


def members(path: str) -> Iterator[Member]:
    """Yield the files in a local tar file, in order.

    Raises a ValueError if the tar file is compressed, damaged or incomplete, or contains links or other special files.
    """
    end, offset = os.path.getsize(path), 0
    extended: dict[bytes, bytes] = {}  # fields of the next file that its header cannot contain
    with open(path, "rb", buffering=0) as file:
        while any(header := _read(file, offset, _BLOCK)) or len(header) < _BLOCK:
            kind, size = header[156:157], _number(header[124:136])
            if b"size" in extended and kind not in (b"x", b"L"):
                size = _number(extended[b"size"][:20], base=10)
            start, offset = offset + _BLOCK, offset + _BLOCK + -(-size // _BLOCK) * _BLOCK
            if len(header) < _BLOCK or header[257:262] != b"ustar" or size < 0 or offset > end:
                raise ValueError(
                    f"{path} must be a complete tar file without compression. Received: no valid header at byte "
                    f"{start - _BLOCK:,} of {end:,}. Download or write the file again, or decompress it."
                )
            if kind in (b"x", b"L") and size <= _MAX_EXTENDED:
                content = _read(file, start, size)
                extended |= _fields(content) if kind == b"x" else {b"path": content.rstrip(b"\0")}
            elif kind in (b"0", b"\0", b"7") and not any(key.startswith(b"GNU.sparse") for key in extended):
                name = (extended.get(b"path") or _name(header)).decode(errors="surrogateescape")
                if not name.endswith("/"):  # a folder in very old files
                    yield Member(path, name, start, size)
                extended = {}
            elif kind == b"5":
                extended = {}
            elif kind != b"g":
                raise ValueError(
                    f"{path} must contain only regular files and folders. Received: the type {kind!r}, such as a "
                    f"link or a sparse file, at byte {start - _BLOCK:,}. Write the tar file with `tar --dereference`."
                )


def content(path: str, offset: int, size: int) -> bytes:
    """Return bytes of a file."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.pread(file, size, offset)
    finally:
        os.close(file)


def _read(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _name(header: bytes) -> bytes:
    name, prefix = header[:100].split(b"\0")[0], header[345:500].split(b"\0")[0]
    return prefix + b"/" + name if prefix and header[257:263] == b"ustar\0" else name


def _number(field: bytes, base: int = 8) -> int:
    """Return a number of a header. It is text or, if it is large, binary. Returns -1 if it is invalid."""
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.split(b"\0")[0], base)
    except ValueError:
        return -1


def _fields(content: bytes) -> dict[bytes, bytes]:
    """Return the fields of an extended header, lines of the form `LENGTH KEY=VALUE`."""
    fields = {}
    while content:
        length = content.split(b" ", 1)[0]
        count = int(length) if length.isdigit() and len(length) < 8 else 0
        key, equals, value = content[len(length) + 1 : max(count - 1, 0)].partition(b"=")
        if not equals:
            return {b"size": b"invalid"}
        fields[key], content = value, content[count:]
    return fields
