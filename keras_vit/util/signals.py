"""Handling of SIGTERM and Ctrl-C: a program exits cleanly within seconds, and immediately after a second signal."""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from absl import logging

from keras_vit.util import progress

SIGNALS = (signal.SIGTERM, signal.SIGINT)
PATIENCE = 5.0  # seconds that the main thread has to exit if nothing must be saved
AGAIN = 2.0  # seconds after which a signal is a second request: `timeout`, schedulers and sweeps repeat their signals
AT_ONCE = 2.0  # seconds that the main thread has to clean up after a second request


class Stopped(KeyboardInterrupt):
    """SIGTERM or Ctrl-C. The class is not an `Exception`, because libraries might catch it."""

    def __init__(self, number: int, restart_code: int | None = None):
        advice = " Nothing is lost: start the same command again." if restart_code else ""
        super().__init__(f"Stopped by {name_of(number)}.{advice}")
        self.exit_code = restart_code or 128 + number


class StopRequest:
    """Handling of SIGTERM and SIGINT within a `with` block.

    Initially, a signal raises `Stopped` in the main thread. Python delays its handlers while a library compiles or
    computes. A thread therefore logs each signal immediately, and ends the process after `PATIENCE` seconds.

    After `defer()`, a signal only sets `signal`, so that the caller can finish its work and save. Within
    `interruptible()`, a signal raises `Stopped`, and the caller saves. `release()` restores the initial behavior. A
    second signal always raises `Stopped`, and the process ends after `AT_ONCE` seconds.

    If several processes train, TensorFlow and JAX install their own handlers: call `listen()` after setting up the
    devices.

    Args:
        restart_code: Exit code if nothing must be saved and a restart resumes. None for 128 + the number of the signal.
    """

    def __init__(self, restart_code: int | None = None):
        self._restart_code = restart_code
        self._number: int | None = None  # number of the first signal
        self._first = 0.0  # time of the first signal
        self._deferred, self._safe = False, True
        self._what, self._ends = "", 0.0
        self._previous: dict = {}
        self._watch = contextlib.ExitStack()

    def __bool__(self) -> bool:
        return self._number is not None

    @property
    def signal(self) -> str | None:
        """Name of the received signal, or None."""
        return None if self._number is None else name_of(self._number)

    def defer(self, what: str = "the current step or evaluation", seconds: float = 0.0) -> None:
        """From now on, only record signals. `what` is the work to finish, and `seconds` is its estimated duration."""
        self._what, self._ends = what, time.monotonic() + seconds
        self._deferred, self._safe = True, False
        self.listen()

    def release(self) -> None:
        """Let signals end the program again, because everything is saved. Raise `Stopped` for a recorded signal."""
        self._deferred, self._safe = False, True
        self._raise_noted()

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raise `Stopped` for a recorded signal or a signal within the block. The caller must then save."""
        self._deferred = False
        try:
            self._raise_noted()
            yield
        finally:
            self._deferred = True

    def listen(self) -> None:
        """Install the handlers again, in case another library has replaced them."""
        for number in self._previous:
            signal.signal(number, self._handle)

    def __enter__(self) -> Any:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers only there
            self._previous = {number: signal.getsignal(number) for number in SIGNALS}
            self.listen()
            self._start_watching()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._watch.close()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _raise_noted(self) -> None:
        if self._number is not None:
            raise self._stopped(self._number)

    def _stopped(self, number: int) -> Stopped:
        return Stopped(number, self._restart_code if self._safe else None)

    def _handle(self, number: int, frame: Any) -> None:
        again, now = self._number is not None, time.monotonic()
        if not again:
            self._number, self._first = number, now
        if now - self._first >= AGAIN if again else not self._deferred:
            raise self._stopped(number)

    def _start_watching(self) -> None:
        """Start a thread that reads signals from a pipe, to which Python writes them immediately."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        previous = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        thread = threading.Thread(target=self._read_signals, args=(reading,), name="signals", daemon=True)
        thread.start()
        self._watch.callback(os.close, reading)
        self._watch.callback(thread.join)
        self._watch.callback(os.close, writing)  # ends the thread
        self._watch.callback(signal.set_wakeup_fd, previous)

    def _read_signals(self, reading: int) -> None:
        first, exit_code, number = 0.0, 0, 0
        deadline: float | None = None
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if not select.select([reading], [], [], left)[0]:
                if exit_code or self._safe:
                    break
                deadline = None  # the main thread is saving
                continue
            received, now = os.read(reading, 1), time.monotonic()
            if not received:
                return
            if received[0] not in SIGNALS or signal.getsignal(received[0]) != self._handle:
                continue  # a server has its own handlers
            number = received[0]
            if not first:
                first, deadline = now, now + PATIENCE if self._safe else None
                logging.warning("%s received: %s.", name_of(number), self._answer(now))
            elif now - first >= AGAIN:
                exit_code, deadline = 128 + number, now + AT_ONCE
                logging.warning("%s received again: ending at once.", name_of(number))
        error = Stopped(number) if exit_code else self._stopped(number)
        logging.error("%s", error)
        logging.flush()
        os._exit(error.exit_code)

    def _answer(self, now: float) -> str:
        """Describe the reaction to a signal."""
        if self._safe:
            return "stopping"
        left, work = self._ends - now, progress.current()
        about = f" (about {progress.duration(left)})" if left > 1 else f" ({work})" if work else ""
        awaited = f"after {self._what}{about}" if self._deferred else "the state"
        return f"saving {awaited}. A second signal ends the program without saving"


def name_of(number: int) -> str:
    """Return `"SIGTERM"` or `"Ctrl-C"`."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
