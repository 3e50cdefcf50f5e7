"""Preemption: stopping without loss when SIGTERM or Ctrl-C comes."""

import contextlib
import os
import select
import signal
import threading

from absl import logging

from keras_vit.training.errors import Interrupted

SIGNALS = (signal.SIGTERM, signal.SIGINT)
PATIENCE = 5  # seconds after SIGTERM in which the main thread can end the program, while there is nothing to save


class StopRequest:
    """Within its `with` block, SIGTERM and SIGINT ask the program to stop instead of killing the process.

    TensorFlow and JAX install handlers of their own where several processes train: call `listen()` after the devices
    were set up.

    Before the end of the first step there is nothing to save, so the program stops with `Interrupted`. Python's
    handlers wait while TensorFlow or JAX compiles or computes. Therefore a thread watches as well: it logs a signal
    when it comes, and ends the process after `PATIENCE` seconds if SIGTERM came before `defer()`. From `defer()` on, a
    signal only sets `signal`, for the loop to finish its step and to save. A second SIGINT (Ctrl-C) then raises
    `KeyboardInterrupt`.

    Attributes:
        signal: Name of the signal that came, or None.
    """

    def __init__(self):
        self.signal: str | None = None
        self._deferred = False
        self._previous: dict = {}
        self._watch = contextlib.ExitStack()

    def __bool__(self) -> bool:
        return self.signal is not None

    def defer(self) -> None:
        """Note signals from now on, for the caller to look at."""
        self._deferred = True
        self.listen()

    def listen(self) -> None:
        """Install the handlers, also where another library has replaced them."""
        for number in self._previous:
            signal.signal(number, self._handle)

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():  # Python allows it nowhere else
            self._previous = {number: signal.getsignal(number) for number in SIGNALS}
            self.listen()
            self._start_watching()
        return self

    def __exit__(self, kind, error, trace):
        self._watch.close()
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if kind is KeyboardInterrupt and not self._deferred and self.signal:
            raise Interrupted(_before_the_first_step(self.signal)) from None

    def _handle(self, number, frame):
        again = self.signal is not None and number == signal.SIGINT
        self.signal = signal.Signals(number).name
        if not self._deferred or again:
            raise KeyboardInterrupt  # not an Exception, which a library on the way might catch

    def _start_watching(self):
        """Start the thread that reads the signals which Python writes to a pipe as soon as they come."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        previous = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        thread = threading.Thread(target=self._read_signals, args=(reading,), name="signals", daemon=True)
        thread.start()
        self._watch.callback(os.close, reading)
        self._watch.callback(thread.join)
        self._watch.callback(os.close, writing)  # ends the thread
        self._watch.callback(signal.set_wakeup_fd, previous)

    def _read_signals(self, reading: int):
        patience = None
        while select.select([reading], [], [], patience)[0]:
            received = os.read(reading, 1)
            if not received:
                return
            if received[0] in SIGNALS:
                awaited = "saving after the step or the evaluation that runs"
                if not self._deferred:
                    awaited = "stopping. There is nothing to save before the end of the first step"
                    patience = PATIENCE if received[0] == signal.SIGTERM else None
                logging.warning("%s received: %s.", signal.Signals(received[0]).name, awaited)
        logging.error("%s", _before_the_first_step("SIGTERM"))
        logging.flush()
        os._exit(Interrupted.exit_code)


def _before_the_first_step(name: str) -> str:
    return f"Stopped by {name} before the first step. Start the same command again."
