"""Reports of workers that wait for other workers, or that delay the other workers."""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator

from absl import logging

from keras_vit.runs.errors import Interrupted
from keras_vit.util.progress import duration

STEP = 60.0, 1800.0  # seconds that a call may run before it is reported, and before the process ends
EVERY = 60.0  # seconds between two reports
STOOD_STILL = 5.0  # shortest reported pause of the process, in seconds
_TICK = 1.0


class Watch:
    """Thread that reports how long this process has been within `waiting()`, and ends the process after a limit.

    The process ends with exit code 75, so that a supervisor restarts all workers. `explain` returns a sentence about
    the cause. The thread also reports pauses of the whole process, for example on an overloaded machine.
    """

    def __init__(self, explain: Callable[[], str], first: float, limit: float, enabled: bool = True):
        self._explain, self._first, self._limit = explain, first, limit
        self._since, self._seconds, self._starved = math.inf, 0.0, 0.0
        self._closed = threading.Event()
        if enabled:
            threading.Thread(target=self._run, name="watch", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Treat the time within the block as waiting."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = math.inf

    def note(self, seconds: float, starved: bool) -> None:
        """Record the duration of some steps. `starved` is True if the steps ended before the next batch was read."""
        self._seconds, self._starved = self._seconds + seconds, self._starved + seconds * starved
        if self._seconds >= EVERY:
            if self._starved > self._seconds / 2:
                text = "This process waited for its data in %d of the last %d s, and the other workers waited for it."
                logging.warning(text, self._starved, self._seconds)
            self._seconds = self._starved = 0.0

    def _run(self) -> None:
        since, due = math.inf, self._first
        while True:
            before = time.monotonic()
            if self._closed.wait(_TICK):
                return
            now = time.monotonic()
            if self._since != since:
                since, due = self._since, self._first
            waited, late = now - since, now - before - _TICK
            if waited > 0 and late > STOOD_STILL:
                logging.warning("This process stood still for %d s, and the other workers waited for it.", late)
            if waited > self._limit:
                try:  # the reader of the log may be gone
                    logging.error("Waited for %s. %s Start all workers again.", duration(waited), self._explain())
                    logging.flush()
                finally:
                    os._exit(Interrupted.exit_code)
            if waited > due:
                due = waited + EVERY
                logging.warning("Waiting for %s. %s", duration(waited), self._explain())
