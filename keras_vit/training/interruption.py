"""Stopping politely when the machine is about to go away."""

import signal
import threading

from absl import logging


class StopRequest:
    """Within its `with` block, SIGTERM and SIGINT ask the loop to stop instead of killing the process.

    A second SIGINT (Ctrl-C) raises `KeyboardInterrupt` at once.

    Attributes:
        signal: name of the signal that came, or None.
    """

    def __init__(self):
        self.signal = None
        self._previous = {}

    def __bool__(self):
        return self.signal is not None

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():  # Python allows it nowhere else
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number, frame):
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number).name
        logging.warning("%s received: finishing the step and saving.", self.signal)
