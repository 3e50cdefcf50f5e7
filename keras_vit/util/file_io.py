"""Atomic writing of files and directories, and small file formats that several modules share."""

import contextlib
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from typing import Any

from keras_vit.util import extras

_PREFIX = ".writing-"
_STALE_SECONDS = 3600
# Texts that a spreadsheet takes for formulas, after any apostrophes. In a CSV file they get one more apostrophe.
_FORMULA = re.compile(r"'*[=+@\t\r\n-]")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # at least two letters: C:/ is a drive


def is_remote(path: str) -> bool:
    """Return whether a path is a remote URL, such as gs://bucket/file. A URL file:///folder/file is local."""
    return "://" in path.removeprefix("file://")


def check_writable(path: str | os.PathLike, schemes: Iterable[str] = ()) -> None:
    """Raise an error if a path is a URL whose scheme is not in `schemes`.

    `pathlib` turns gs://a into gs:/a, which is rejected as well.
    """
    path = os.fspath(path)
    url = _URL.match(path)
    if url and not (url[1] in schemes and is_remote(path)):
        others = f" or a URL, {' or '.join(f'{scheme}://' for scheme in schemes)}" if schemes else ""
        raise ValueError(
            f"Expected a path in the file system{others} to write to. Received: {path!r}. Mount the bucket, such as "
            "with `gcsfuse my-bucket ~/bucket`, and pass a path in it; or write to a local path and copy the result."
        )


def cache_directory() -> str:
    """Return the directory of downloads and local copies in Keras' home directory."""
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    return os.path.join(home, "keras_vit")


def copy_of(url: str, kind: str) -> str:
    """Return the path of a local copy of a bucket URL."""
    return os.path.join(cache_directory(), "buckets", kind, url.replace("://", "/"))


def shown(text: str) -> str:
    """Replace the paths of local copies in a text with the URLs that they were copied from."""
    root = os.path.join(cache_directory(), "buckets", "")
    return re.sub(rf"{re.escape(root)}\w+/(gs|s3)/", r"\1://", text) if root in text else text


def make_directory(path: str | os.PathLike) -> None:
    """Create a directory and its parents unless it exists."""
    check_writable(path)
    os.makedirs(path, exist_ok=True)


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike) -> Iterator[str]:
    """Yield a temporary path, and atomically replace `path` with the file written there.

    Readers see either the old or the new content. The content is on the disk before the file is renamed. The
    permissions of an existing file are kept, and symbolic links are followed. Temporary files of killed processes are
    removed after an hour.
    """
    temporary = _temporary_name(path)
    path = os.path.realpath(path)
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # the umask applies
        if os.path.exists(path):
            shutil.copymode(path, temporary)
        yield temporary
        move_file(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


@contextlib.contextmanager
def atomic_directory(path: str | os.PathLike) -> Iterator[str]:
    """Yield a temporary directory, and rename it to `path` in one step, with all its files."""
    with draft_directory(path) as temporary:
        yield temporary
        move_directory(temporary, path)


@contextlib.contextmanager
def draft_directory(path: str | os.PathLike) -> Iterator[str]:
    """Create a temporary directory on the same file system as `path`, and remove it afterwards."""
    temporary = _temporary_name(path)
    os.mkdir(temporary)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def move_file(draft: str | os.PathLike, path: str | os.PathLike) -> None:
    """Rename a finished file to `path` in one step, after its content has been written to the disk."""
    path = os.path.realpath(path)
    _sync(os.fspath(draft))
    os.replace(draft, path)
    _sync(os.path.dirname(path))


def move_directory(draft: str | os.PathLike, path: str | os.PathLike) -> None:
    """Rename a finished directory to `path` in one step, after all its files have been written to the disk."""
    path = os.path.realpath(path)
    for directory, _, files in os.walk(os.fspath(draft), topdown=False):
        for name in files:
            _sync(os.path.join(directory, name))
        _sync(directory)
    try:
        os.rename(draft, path)
    except OSError as error:
        if os.path.lexists(path):
            raise FileExistsError(f"Expected no directory, or an empty one, at {path!r}. It is in use.") from error
        raise
    _sync(os.path.dirname(path))


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write a UTF-8 text file in one step."""
    with atomic_file(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)


def write_json(path: str | os.PathLike, content: Any) -> None:
    """Write an indented JSON file in one step."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def decode_text(content: bytes, path: str | os.PathLike) -> str:
    """Decode the content of a UTF-8 file and drop the byte order mark. `path` is for the error message."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path} must be UTF-8. Line {line} contains {content[error.start : error.end]!r}. Save the file as UTF-8."
        ) from error


def read_lines(path: str | os.PathLike) -> list[str]:
    """Read the lines of a text file, without trailing empty lines."""
    with open(path, "rb") as file:
        lines = decode_text(file.read(), path).rstrip().splitlines()
    if not lines:
        raise ValueError(f"{path} must have a text in each line. Received: an empty file.")
    return lines


def read_json(path: str | os.PathLike, kind: type = dict) -> Any:
    """Read a JSON file."""
    with open(path, "rb") as file:
        raw = file.read()
    try:
        content = json.loads(decode_text(raw, path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)!r} is not valid JSON: {error}") from error
    if not isinstance(content, kind):
        raise ValueError(f"{os.fspath(path)!r} must be a JSON {kind.__name__}. Received: a {type(content).__name__}.")
    return content


def read_json_lines(path: str | os.PathLike) -> tuple[list[dict[str, Any]], int]:
    """Read a file with one JSON object per line. Return the objects and the number of invalid lines."""
    lines, damaged = [], 0
    with open(path, "rb") as file:
        for raw in file:
            if not raw.strip():
                continue
            try:
                content = json.loads(raw.decode("utf-8-sig"))
            except (ValueError, RecursionError):
                content = None
            if isinstance(content, dict):
                lines.append(content)
            else:
                damaged += 1
    return lines, damaged


def escape_formula(text: str) -> str:
    """Return a text for a CSV file, with an apostrophe before a text that a spreadsheet would run as a formula."""
    return "'" + text if _FORMULA.match(text) else text


def unescape_formula(text: str) -> str:
    """Return the text that `escape_formula` has written."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def sha256(path: str | os.PathLike) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def joint_sha256(paths: Iterable[str]) -> str:
    """Return the SHA-256 of a single file, or a SHA-256 of the names and SHA-256s of several files."""
    hashes = {os.path.basename(path): sha256(path) for path in paths}
    return next(iter(hashes.values())) if len(hashes) == 1 else hashlib.sha256(repr(hashes).encode()).hexdigest()


def import_pyarrow(extra: str = "parquet", text: str = "Parquet files need PyArrow") -> Any:
    """Import PyArrow. The error names an extra and states what requires it."""
    with extras.needed(extra, text):
        import pyarrow.fs
        import pyarrow.parquet
    return pyarrow


def _temporary_name(path: str | os.PathLike) -> str:
    check_writable(path)
    directory, name = os.path.split(os.path.realpath(path))
    os.makedirs(directory, exist_ok=True)
    with contextlib.suppress(OSError):
        _remove_stale(directory)
    return os.path.join(directory, f"{_PREFIX}{secrets.token_hex(4)}-{name}")


def _remove_stale(directory: str) -> None:
    for path in glob.glob(os.path.join(glob.escape(directory), f"{_PREFIX}*")):
        if time.time() - os.lstat(path).st_mtime > _STALE_SECONDS:
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def _sync(path: str) -> None:
    """Wait until a file or directory is written to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:  # some network file systems cannot sync a directory
        if not os.path.isdir(path):
            raise
    finally:
        os.close(handle)
