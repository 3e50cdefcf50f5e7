"""Lease of a bucket URL: an object next to it, which only one process can create and which that process renews."""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from keras_vit.util import formatting, locks
from keras_vit.util.progress import Progress

_PATIENCE = 600  # seconds that the other workers wait until the chief holds the lease


class Lease:
    """Lease of a bucket URL. A lease that is not renewed for three minutes expires.

    Attributes:
        key: Key of this process, or of the killed process whose lease it continues.
        is_unfinished: Whether uploads of the owner are missing. The lease then stays after the end of the process.
    """

    def __init__(self, files: Any, url: str, path: str):
        self.files, self.url, self.path = files, url, path
        self.key: str | None = None
        self.is_unfinished = self._others_read = False

    @contextlib.contextmanager
    def held(self, flag: str, key: str | None) -> Iterator[None]:
        """Hold the lease within a `with` block.

        The lease of `key`, whose process was killed, is continued at once if no other process has taken over the URL.
        """
        self.key = key
        with reaching(self.url):
            self.is_unfinished = self.is_mine()
            if not self.is_unfinished:
                self.key = secrets.token_hex(8)
            while not (self.is_mine() or self._sign(mode="create")):  # a retry finds the object that it created
                now = other = self._read()
                owner = f"process {other.get('process')} on {other.get('host')}"
                deadline = time.monotonic() + locks.SILENCE
                with Progress(f"Checking whether {owner} still writes to {self.url}"):
                    while other and now == other and time.monotonic() < deadline:
                        time.sleep(min(1.0, locks.REFRESH))
                        now = self._read()
                if now and now != other:
                    raise locks.taken(self.url, flag, owner)
                if now and self._read() == other:
                    self.files.rm_file(self.path)
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(locks.REFRESH):
                self._renew()

        thread = threading.Thread(target=renew, name="owner", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            with contextlib.suppress(Exception):
                if not self.is_unfinished and self.is_mine():  # otherwise a later process continues the lease
                    self.files.rm_file(self.path)

    def wait_for_chief(self) -> None:
        """Wait until another process, not an earlier one that was killed, lets others read the URL."""
        with reaching(self.url), Progress(f"Waiting for the worker that writes to {self.url}"):
            earlier, deadline = self._read(), time.monotonic() + _PATIENCE
            owner = earlier
            while owner == earlier or not owner.get("others_read"):  # a living owner signs again
                if time.monotonic() > deadline:
                    raise TimeoutError("no worker took over the URL; see the log of the first worker")
                time.sleep(min(1.0, locks.REFRESH))
                owner = self._read()

    def let_others_read(self) -> None:
        """End the wait of the other workers."""
        self._others_read = True
        self._renew()

    def is_mine(self) -> bool:
        """Return whether this process holds the lease."""
        return self._read().get("key", "") == self.key

    def _renew(self) -> None:
        with contextlib.suppress(Exception):  # the network may be unavailable for a moment
            if self.is_mine():
                self._sign(mode="overwrite")

    def _sign(self, mode: str) -> bool:
        me = {"process": os.getpid(), "host": socket.gethostname(), "key": self.key, "others_read": self._others_read}
        try:
            self.files.pipe_file(self.path, json.dumps({**me, "sign": secrets.token_hex(4)}).encode(), mode=mode)
        except FileExistsError:
            return False
        return True

    def _read(self) -> dict[str, Any]:
        try:
            return json.loads(self.files.cat_file(self.path))
        except FileNotFoundError:
            return {}


@contextlib.contextmanager
def reaching(url: str, more: str = "") -> Iterator[None]:
    """Convert all errors of a bucket to an OSError that names the URL."""
    try:
        yield
    except (ValueError, ImportError):
        raise
    except Exception as error:
        raise OSError(f"Could not reach {url}: {type(error).__name__}: {formatting.one_line(error)}{more}") from error
