"""Preemption: stopping without loss when SIGTERM or Ctrl-C comes."""

import signal
import threading

from absl import logging

from keras_vit.training.errors import Interrupted

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Within its `with` block, SIGTERM and SIGINT ask the program to stop instead of killing the process.

    TensorFlow and JAX install handlers of their own where several processes train: call `listen()` after the devices
    were set up.

    Before the first step there is nothing to save, so the program stops at once with `Interrupted`. From `defer()` on,
    a signal only sets `signal`, for the loop to finish its step and to save. A second SIGINT (Ctrl-C) then raises
    `KeyboardInterrupt`.

    Attributes:
        signal: Name of the signal that came, or None.
    """

    def __init__(self):
        self.signal: str | None = None
        self._deferred = False
        self._previous: dict = {}

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
        return self

    def __exit__(self, kind, error, trace):
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if kind is KeyboardInterrupt and not self._deferred and self.signal:
            raise Interrupted(
                f"Stopped by {self.signal} before the first step. Start the same command again."
            ) from None

    def _handle(self, number, frame):
        again = self.signal is not None and number == signal.SIGINT
        self.signal = signal.Signals(number).name
        if not self._deferred or again:
            raise KeyboardInterrupt  # not an Exception, which a library on the way might catch
        logging.warning("%s received: finishing the step and saving.", self.signal)
