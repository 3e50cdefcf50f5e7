"""Reports of a worker that waits for others, or that lets them wait. Neither TensorFlow nor JAX reports them."""

import contextlib
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import keras
from absl import logging

from keras_vit._progress import duration
from keras_vit.training.errors import Interrupted

JOINING = 30.0, 600.0  # seconds of waiting before a report, and before the process ends
STEP = 60.0, 1800.0
EVERY = 60.0  # seconds between two reports
STOOD_STILL = 5.0  # seconds of standing still that are reported
_TICK = 1.0


class Watch:
    """A thread that reports how long this process waits within `waiting()`, and ends the process after a limit.

    It ends with exit code 75, for a supervisor to start all workers again. `explain` returns a sentence on the cause.
    The thread also reports when this process stood still, as on an overloaded machine.
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
        """Count the time within the block."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = math.inf

    def note(self, seconds: float, starved: bool) -> None:
        """Note the time of some steps, and whether the next batch of this process was not read at their end."""
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
                logging.error("Waited for %s. %s Start all workers again.", duration(waited), self._explain())
                logging.flush()
                os._exit(Interrupted.exit_code)
            if waited > due:
                due = waited + EVERY
                logging.warning("Waiting for %s. %s", duration(waited), self._explain())


@contextlib.contextmanager
def joining() -> Iterator[None]:
    """Report the workers of TF_CONFIG that cannot be reached, within the block, which waits for them."""
    watch = Watch(_unreachable, *JOINING, enabled="TF_CONFIG" in os.environ)
    with contextlib.closing(watch), watch.waiting():
        yield


def _unreachable() -> str:
    """Return a sentence with the workers that do not listen at their addresses."""
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    names = [(kind, index) for kind in ("chief", "worker") for index in range(len(cluster.get(kind, ())))]
    listening = names[:1] if keras.backend.backend() == "jax" else names  # on JAX, the others connect to the first
    missing = []
    for kind, index in listening:
        host, port = cluster[kind][index].rsplit(":", 1)
        try:
            socket.create_connection((host, int(port)), timeout=2).close()
        except OSError as error:
            missing.append(f"{kind} {index} at {host}:{port} ({error.strerror or error})")
    if missing:
        return f"Not reached: {', '.join(missing)}."
    return f"Reached {len(listening)} of {len(names)} workers. Compare TF_CONFIG and the logs of all workers."
