"""Lock of a run directory: two processes must not train in the same one."""

import contextlib
import errno
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator

from absl import logging

from keras_vit import _io
from keras_vit.training.errors import Interrupted

LOCK = ".lock"
SILENCE = 180  # seconds without a sign of the owner after which a lock without flock is free
_OWNER = ".lock-owner"
_REFRESH = 30  # seconds between two signs
_SECONDS_BETWEEN_LOOKS = 1.0
# Error codes of file systems that have no flock, such as some network file systems.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
_held: set[str] = set()  # contents of the owner files of this process


@contextlib.contextmanager
def locked(directory: str | None) -> Iterator[None]:
    """Hold a run directory for this process. The directory is created if it does not exist.

    The kernel releases the lock when the process ends, however it ends. On a file system without locks, a file that
    names the owner takes its place. The owner writes it again every 30 seconds. Another process takes it over if the
    owner is dead, or three minutes after it was written last; until then, it waits to see whether the owner runs.
    Workers that write nothing give no directory and hold none.
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
    """The lock where there is no flock: a file that its owner writes again and again while it runs."""
    path, me, done = os.path.join(directory, _OWNER), _name_of_this_process(), threading.Event()
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(me)
    except FileExistsError:
        _await_end(directory)
        _io.write_text(path, me)
    _held.add(me)
    thread = threading.Thread(target=_refresh, args=(directory, me, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        _held.remove(me)
        if _read(path) == me:
            os.remove(path)


def _refresh(directory: str, me: str, done: threading.Event) -> None:
    """Write the file again and again. End the process if another one has taken it over, after a long silence."""
    path = os.path.join(directory, _OWNER)
    while not done.wait(_REFRESH):
        with contextlib.suppress(OSError):  # a file system that fails for a while
            owner = _read(path)
            if owner not in (me, None):
                logging.error("%s took over %s from this process, which ends without saving.", _name(owner), directory)
                logging.flush()
                os._exit(Interrupted.exit_code)
            _io.write_text(path, me)


def _await_end(directory: str) -> None:
    """Return once the owner of the file is certain not to run; raise `_taken` once it has written it again."""
    path = os.path.join(directory, _OWNER)
    first, waiting = _look(path), False
    while (found := _look(path)) is not None:
        owner, written = found
        if owner in _held or found != first:
            advice = f" Its lock {path} expires {SILENCE // 60} minutes after that process has ended."
            raise _taken(directory, owner, advice)
        if _is_dead(owner) or _clock(directory) - written > SILENCE:
            logging.warning("Taking over the lock of %s: %s no longer runs.", directory, _name(owner))
            return
        if not waiting:
            logging.info("Waiting up to %d minutes to see whether %s still runs.", SILENCE // 60, _name(owner))
            waiting = True
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _look(path: str) -> tuple[str, float] | None:
    """Return the content of a file and when it was written, None if there is none."""
    owner = _read(path)
    try:
        return None if owner is None else (owner, os.stat(path).st_mtime)
    except FileNotFoundError:
        return None


def _clock(directory: str) -> float:
    """Return the time by the clock of the file system, which may be that of another machine."""
    path = os.path.join(directory, LOCK)
    os.utime(path)
    return os.stat(path).st_mtime


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1000)
    except FileNotFoundError:
        return None


def _is_dead(owner: str) -> bool:
    """Return whether the owner was a process that could be seen from here and no longer runs."""
    try:
        found = json.loads(owner)
        if (found["host"], found["namespace"]) != (socket.gethostname(), _namespace()):
            return False
        if found["process"] == os.getpid():  # an earlier process, because this one knows what it holds
            return True
        os.kill(int(found["process"]), 0)
    except ProcessLookupError:
        return True
    except (ValueError, KeyError, TypeError, OSError):
        return False
    return False


def _namespace() -> str:
    """Return the space of process numbers: containers may have the name of their host, and all have a process 1."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _name_of_this_process() -> str:
    host, start = socket.gethostname(), secrets.token_hex(8)
    return json.dumps({"host": host, "process": os.getpid(), "namespace": _namespace(), "start": start})


def _name(owner: str) -> str:
    try:
        return "process {process} on {host}".format(**json.loads(owner))
    except (ValueError, KeyError, TypeError):
        return "another process"


def _taken(directory: str, owner: str, advice: str = "") -> ValueError:
    return ValueError(f"{_name(owner)} trains in {directory}. Wait for its end, or give another --workdir.{advice}")
