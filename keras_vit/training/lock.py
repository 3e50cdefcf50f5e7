"""Lock of a run directory: two processes must not train in the same one."""

import contextlib
import errno
import json
import os
import socket
from collections.abc import Iterator

from keras_vit import _io

LOCK = ".lock"
_OWNER = ".lock-owner"
# What file systems answer that have no flock, such as some network file systems.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)


@contextlib.contextmanager
def locked(directory: str | None) -> Iterator[None]:
    """Hold a run directory for this process. The directory is created if it does not exist.

    The kernel releases the lock when the process ends, however it ends. On a file system without locks, a file that
    names the owner takes its place; that of a dead process of this host is removed.

    Args:
        directory: The run directory; None, for workers that write nothing, holds none.

    Raises:
        ValueError: If another process trains there; names it.
    """
    if directory is None:
        yield
        return
    os.makedirs(directory, exist_ok=True)
    try:
        handle = os.open(os.path.join(directory, LOCK), os.O_RDWR | os.O_CREAT, 0o666)
        held = _flock(handle, directory)
    except BaseException:
        with contextlib.suppress(UnboundLocalError):
            os.close(handle)
        raise
    try:
        with contextlib.nullcontext() if held else _owner_file(directory):
            yield
    finally:
        os.close(handle)  # releases the lock


def _flock(handle: int, directory: str) -> bool:
    """Lock an open file and write this process's name into it. Return whether the file system can do that."""
    try:
        import fcntl
    except ImportError:  # not on this operating system
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise _taken(directory, os.pread(handle, 1000, 0).decode("utf-8", "replace")) from error
        if error.errno in _UNSUPPORTED:
            return False
        raise
    os.ftruncate(handle, 0)
    os.pwrite(handle, _name_of_this_process().encode(), 0)
    return True


@contextlib.contextmanager
def _owner_file(directory: str) -> Iterator[None]:
    """The lock where there is no flock: a file that only one process can create."""
    path = os.path.join(directory, _OWNER)
    if os.path.exists(path) and _is_dead(path):
        os.remove(path)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError as error:
        with open(path, encoding="utf-8", errors="replace") as file:
            raise _taken(directory, file.read(), f" If that process no longer runs, delete {path}.") from error
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(_name_of_this_process())
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def _is_dead(path: str) -> bool:
    """Return whether the owner was a process of this host that no longer runs."""
    try:
        owner = _io.read_json(path)
        if owner["host"] != socket.gethostname():
            return False
        os.kill(int(owner["process"]), 0)
    except ProcessLookupError:
        return True
    except (ValueError, KeyError, TypeError, OSError):
        return False
    return False


def _name_of_this_process() -> str:
    return json.dumps({"host": socket.gethostname(), "process": os.getpid()})


def _taken(directory: str, owner: str, advice: str = "") -> ValueError:
    try:
        name = "process {process} on {host}".format(**json.loads(owner))
    except (ValueError, KeyError, TypeError):
        name = "another process"
    return ValueError(f"{name} trains in {directory}. Wait for its end, or give another --workdir.{advice}")
