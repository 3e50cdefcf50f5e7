"""Parts of objects in buckets, which are read without a copy of the object."""

import concurrent.futures
import functools
from collections.abc import Sequence
from typing import Any

from keras_vit.util import file_io, storage
from keras_vit.util.bucket_lease import reaching

_READERS = 64  # threads that read parts of objects


def size(url: str) -> int:
    """Return the size of an object in bytes."""
    with reaching(url):
        return storage.file_system(url).size(_without_scheme(url))


def opened(url: str) -> Any:
    """Open an object for reading. It is read in large blocks."""
    with reaching(url):
        return storage.file_system(url).open(_without_scheme(url), "rb")


def read(parts: Sequence[tuple[str, int, int]]) -> list[bytes]:
    """Return parts of objects, in parallel. A part has a URL, its first byte, and the byte after its last byte.

    PyArrow reads them outside of Python, where fsspec would take a millisecond of Python's time for each part.
    """
    with reaching(parts[0][0]):
        return list(_readers().map(lambda part: _object(part[0]).read_at(part[2] - part[1], part[1]), parts))


def check() -> None:
    """Raise an ImportError if the package that reads parts of objects is missing."""
    file_io.import_pyarrow("buckets", "Reading parts of objects in buckets needs PyArrow")


@functools.cache
def _readers() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(_READERS, thread_name_prefix="objects")


@functools.cache
def _object(url: str) -> Any:
    return _bucket("/".join(url.split("/")[:3])).open_input_file(_without_scheme(url))


@functools.cache
def _bucket(url: str) -> Any:
    return file_io.import_pyarrow().fs.FileSystem.from_uri(url)[0]


def _without_scheme(url: str) -> str:
    return url.partition("://")[2]
