"""Lock of a run directory: two processes must not train in the same one."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator

import filelock
from absl import logging

from keras_vit import _io
from keras_vit.training.errors import Interrupted

LOCK = ".lock"
LEASE = ".lock-owner"
SILENCE = 180  # seconds without a sign of the owner after which a lease is free
_REFRESH = 30  # seconds between two signs
# Error codes of file systems that have no flock, such as some network file systems.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)


@contextlib.contextmanager
def locked(directory: str | None) -> Iterator[None]:
    """Hold a run directory for this process. The directory is created if it does not exist.

    The kernel releases the lock when the process ends, however it ends. On a file system without locks, a lease takes
    its place: a file that names its owner, which touches it every 30 seconds. Another process takes the lease over if
    the owner is dead, or after it has seen no sign of the owner for three minutes.
    Workers that write nothing give no directory and hold none.
    """
    if directory is None:
        yield
        return
    os.makedirs(directory, exist_ok=True)
    lock = _lock(directory) or _lease(directory)
    try:
        yield
    finally:
        lock.release()


def _lock(directory: str) -> filelock.BaseFileLock | None:
    """Lock the directory and write the name of this process for others; None where the file system has no locks."""
    path = os.path.join(directory, LOCK)
    lock = filelock.FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout as error:
        with open(path, encoding="utf-8", errors="replace") as file:
            raise _taken(directory, _io.one_line(file.read(1000))) from error
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
    return lock


def _lease(directory: str) -> filelock.SoftFileLease:
    """Take the lease of the directory. Wait as long as it is uncertain whether its owner runs."""
    path = os.path.join(directory, LEASE)
    lease = filelock.SoftFileLease(
        path, lease_duration=SILENCE, heartbeat_interval=_REFRESH, on_compromise=lambda loss: _end(directory, loss)
    )
    first = _written(path)
    if first is not None:
        logging.info("%s exists. Waiting up to %d minutes to see whether its owner runs.", path, SILENCE // 60)
    try:
        lease.acquire(
            timeout=2 * SILENCE,
            poll_interval=1.0,
            cancel_check=lambda: lease.is_lock_held_by_us or _written(path) not in (first, None),
        )
    except filelock.Timeout as error:
        owner = lease.owner
        name = f"process {owner.pid} on {owner.hostname}" if owner else ""
        advice = f" Its lock {path} expires {SILENCE // 60} minutes after that process has ended."
        raise _taken(directory, name, advice) from error
    return lease


def _written(path: str) -> float | None:
    """Return when a file was written, None if there is none."""
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return None


def _end(directory: str, loss: filelock.LeaseCompromise) -> None:
    """End the process: another one may train in the directory by now."""
    logging.error("The lease of %s was lost (%s). This process ends without saving.", directory, loss.reason)
    logging.flush()
    os._exit(Interrupted.exit_code)


def _taken(directory: str, owner: str, advice: str = "") -> ValueError:
    name = owner or "Another process"
    return ValueError(f"{name} trains in {directory}. Wait for its end, or give another --workdir.{advice}")
