"""Lock of a directory: two processes must not write to the same one."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator

import filelock
from absl import logging

from keras_vit import _io

LOCK = ".lock"
LEASE = ".lock-owner"
SILENCE = 180  # seconds without a sign of the owner after which a lease is free
REFRESH = 30  # seconds between two signs
# Error codes of file systems that have no flock, such as some network file systems.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
_MOUNTS = "/proc/self/mounts"
# Mount options, and types of file systems, with which a lock is unknown to other hosts.
_LOCAL_LOCKS = {"nolock", "local_lock=all", "local_lock=flock", "localflock"}
_LOCAL_TYPES = ("fuse.", "9p")


@contextlib.contextmanager
def locked(directory: str | None, flag: str = "--workdir") -> Iterator[None]:
    """Lock a directory for this process; `flag` chooses it. The directory is created if it does not exist.

    The kernel releases the lock when the process ends, however it ends. On a file system without locks, or whose locks
    other hosts do not see, a lease takes its place: a file that its owner touches every 30 seconds, and that another
    process takes over if the owner is dead, or after three minutes without a sign of it. Workers that write nothing
    give no directory and hold none.
    """
    if directory is None:
        yield
        return
    _io.make_directory(directory)
    lock = _lock(directory, flag) or _lease(directory, flag)
    try:
        yield
    finally:
        lock.release()


def is_taken(directory: str) -> bool:
    """Return whether a process of this machine holds the lock of a directory, which is tried for an instant."""
    path = os.path.join(directory, LOCK)
    try:
        if os.path.exists(path):
            with filelock.FileLock(path, blocking=False, fallback_to_soft=False):
                pass
        return False
    except filelock.Timeout:
        return True
    except OSError:  # no locks here, or nothing may be written
        return False


def _lock(directory: str, flag: str) -> filelock.BaseFileLock | None:
    """Lock the directory and write the name of this process for others; None where the file system has no locks."""
    if _locks_are_local(directory):
        return None
    path = os.path.join(directory, LOCK)
    lock = filelock.FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout as error:
        with open(path, encoding="utf-8", errors="replace") as file:
            raise taken(directory, flag, _io.one_line(file.read(1000)) or "Another process") from error
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
    return lock


def _locks_are_local(directory: str) -> bool:
    """Return whether the locks of a directory are unknown to other hosts that share it, by its mount."""
    path, mount = os.path.join(os.path.realpath(directory), ""), ("", "", "")
    with contextlib.suppress(OSError), open(_MOUNTS, encoding="utf-8", errors="replace") as file:
        for line in file:
            _, point, kind, options, *_ = line.split(" ")
            point = os.path.join(point.replace("\\040", " "), "")
            if path.startswith(point) and len(point) >= len(mount[0]):  # the last mount covers earlier ones
                mount = (point, kind, options)
    return mount[1].startswith(_LOCAL_TYPES) or not _LOCAL_LOCKS.isdisjoint(mount[2].split(","))


def _lease(directory: str, flag: str) -> filelock.SoftFileLease:
    """Take the lease of the directory, once it is certain that no other process holds it."""

    def end(loss: filelock.LeaseCompromise) -> None:  # another process may write to the directory by now
        logging.error("The lease of %s was lost (%s). This process ends without saving.", directory, loss.reason)
        logging.flush()
        os._exit(os.EX_TEMPFAIL)

    path, longest = os.path.join(directory, LEASE), SILENCE + 2 * REFRESH
    lease = filelock.SoftFileLease(path, lease_duration=SILENCE, heartbeat_interval=REFRESH, on_compromise=end)
    owner = lease.owner
    if owner:
        text = "%s holds the lease of %s. After %d seconds without a sign of life, this process takes it over."
        logging.warning(text, _name(owner), directory, SILENCE)
    try:
        lease.acquire(timeout=longest, poll_interval=min(1.0, REFRESH))
    except filelock.Timeout as error:
        raise taken(directory, flag, _name(lease.owner)) from error
    return lease


def _name(owner: filelock.OwnerRecord | None) -> str:
    return f"process {owner.pid} on {owner.hostname.split('?')[0]}" if owner else "Another process"


def taken(directory: str, flag: str, owner: str) -> ValueError:
    """Return the error for a directory that another process writes to."""
    return ValueError(f"{owner} writes to {directory}. Wait for its end, or give another {flag}.")
