"""Lock of a directory, so that only one process writes to it.

`flock` is the lock: the operating system releases it when a process is killed, and a suspended process keeps it. On
file systems without it, or on which other hosts do not see it, a lease replaces it: a file that its owner renews. In
buckets, which have neither, `bucket_lease.py` does the same with an object.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator

import filelock
from absl import logging

from keras_vit.util import file_io, formatting

LOCK = ".lock"
LEASE = ".lock-owner"
SILENCE = 180  # seconds after which a lease expires unless its owner renews it
REFRESH = 10  # seconds between renewals
# Error codes of file systems without flock, such as some network file systems.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
_MOUNTS = "/proc/self/mounts"
# Mount options and types of file systems with which other hosts do not see a lock.
_LOCAL_LOCKS = {"nolock", "local_lock=all", "local_lock=flock", "localflock"}
_LOCAL_TYPES = ("fuse.", "9p")


@contextlib.contextmanager
def locked(directory: str | None, flag: str = "--workdir") -> Iterator[None]:
    """Lock a directory for this process, and create it if it does not exist. None needs no lock.

    The owner renews a lease every ten seconds. Another process takes over the lease if the owner is dead, or if the
    lease was not renewed for three minutes. Messages name `flag`, the flag that sets the directory.
    """
    if directory is None:
        yield
        return
    file_io.make_directory(directory)
    lock = _lock(directory, flag) or _lease(directory, flag)
    try:
        yield
    finally:
        lock.release()


def is_taken(directory: str) -> bool:
    """Return whether a process on this machine has locked a directory, by trying to lock it."""
    path = os.path.join(directory, LOCK)
    try:
        if os.path.exists(path):
            with filelock.FileLock(path, blocking=False, fallback_to_soft=False):
                pass
        return False
    except filelock.Timeout:
        return True
    except OSError:  # the file system has no locks or is read-only
        return False


def _lock(directory: str, flag: str) -> filelock.BaseFileLock | None:
    """Lock a directory and write this process's name to the lock file. Return None if the file system has no locks."""
    if _locks_are_local(directory):
        return None
    path = os.path.join(directory, LOCK)
    lock = filelock.FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout as error:
        with open(path, encoding="utf-8", errors="replace") as file:
            raise taken(directory, flag, formatting.one_line(file.read(1000)) or "Another process") from error
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
    return lock


def _locks_are_local(directory: str) -> bool:
    """Return whether the mount of a directory hides its locks from other hosts."""
    path, mount = os.path.join(os.path.realpath(directory), ""), ("", "", "")
    with contextlib.suppress(OSError), open(_MOUNTS, encoding="utf-8", errors="replace") as file:
        for line in file:
            _, point, kind, options, *_ = line.split(" ")
            point = os.path.join(point.replace("\\040", " "), "")
            if path.startswith(point) and len(point) >= len(mount[0]):  # the last mount hides earlier mounts
                mount = (point, kind, options)
    return mount[1].startswith(_LOCAL_TYPES) or not _LOCAL_LOCKS.isdisjoint(mount[2].split(","))


def _lease(directory: str, flag: str) -> filelock.SoftFileLease:
    """Acquire the lease of a directory. If another process owns the lease, wait until the lease expires."""

    def end(loss: filelock.LeaseCompromise) -> None:  # another process may already write to the directory
        logging.error("The lease of %s was lost (%s). This process ends without saving.", directory, loss.reason)
        logging.flush()
        os._exit(os.EX_TEMPFAIL)

    path, longest = os.path.join(directory, LEASE), SILENCE + 2 * REFRESH
    lease = filelock.SoftFileLease(path, lease_duration=SILENCE, heartbeat_interval=REFRESH, on_compromise=end)
    owner = lease.owner
    if owner:
        text = "%s holds the lease of %s. This process takes it over unless it is renewed within %d seconds."
        logging.warning(text, _name(owner), directory, SILENCE)
    try:
        lease.acquire(timeout=longest, poll_interval=min(1.0, REFRESH))
    except filelock.Timeout as error:
        raise taken(directory, flag, _name(lease.owner)) from error
    return lease


def _name(owner: filelock.OwnerRecord | None) -> str:
    return f"process {owner.pid} on {owner.hostname.split('?')[0]}" if owner else "Another process"


def taken(directory: str, flag: str, owner: str) -> ValueError:
    """Return the error for a directory to which another process writes."""
    return ValueError(f"{owner} writes to {file_io.shown(directory)}. Wait until it ends, or pass another {flag}.")
