"""HDF5 files inside zip archives, and a visit to every object of such a file.

`keras.py` runs this module as a program, in a process with limited memory and time:

    hdf5.py PATH START SIZE
"""

import io
import struct
import sys
import zipfile
from typing import Any, BinaryIO

import h5py

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, length of the name, length of the extra field


class FilePart(io.RawIOBase):
    """A range of bytes of a file, read as a file.

    Before Python 3.13, a member that `zipfile` opens is read again from its start whenever HDF5 seeks backward.
    """

    def __init__(self, file: BinaryIO, start: int, size: int):
        self._file, self._start, self._size, self._position = file, start, size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position and return it."""
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with the bytes that follow, as far as there are any, and return their number."""
        view = memoryview(buffer).cast("B")[: max(0, self._size - self._position)]
        self._file.seek(self._start + self._position)
        count = self._file.readinto(view)  # type: ignore[attr-defined]
        self._position += count
        return count


def data_start(file: BinaryIO, info: zipfile.ZipInfo) -> int:
    """Return the position of the first byte of an archive's member, whose header `zipfile` has checked."""
    file.seek(info.header_offset)
    _, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    return info.header_offset + _LOCAL_HEADER.size + name + extra


def main(path: str, start: int, size: int) -> None:
    """Read the attributes of every object of the HDF5 file in these bytes of `path`."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (20, 25))
        resource.setrlimit(resource.RLIMIT_DATA, (200 * 2**20, 200 * 2**20))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except ImportError:  # Windows has only the time limit
        pass
    with open(path, "rb") as stream, h5py.File(FilePart(stream, start, size), "r") as file:
        file.visititems(_visit)


def _visit(name: str, item: h5py.HLObject) -> None:
    dict(item.attrs)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
