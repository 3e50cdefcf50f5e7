"""Progress of long work: one line on a terminal or in a notebook, log lines elsewhere."""

import shutil
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from absl import logging

_EVERY = 0.2  # seconds between two drawings
_LOG_EVERY = 15.0  # seconds between two log lines


class Progress:
    """Progress of one piece of work, on standard error. With `log=False`, it is shown only where it can be drawn."""

    def __init__(
        self,
        what: str,
        total: int | None,
        enabled: bool = True,
        unit: str = "images",
        stream: TextIO | None = None,
        log: bool = True,
    ):
        self.what, self.total, self.unit, self.done = what, total, unit, 0
        self._stream = stream or sys.stderr
        self._draws = enabled and (self._stream.isatty() or "ipykernel" in sys.modules)
        self._logs = enabled and log and not self._draws
        self._started = self._shown = time.monotonic()

    def add(self, count: int) -> None:
        """Note that `count` more units are done."""
        self.update(self.done + count)

    def update(self, done: int, details: Sequence[str] | None = None) -> None:
        """Note that `done` units are done. `details` replace time and speed."""
        self.done = done
        now = time.monotonic()
        if not (self._draws or self._logs) or now - self._shown < (_EVERY if self._draws else _LOG_EVERY):
            return
        self._shown = now
        rate = done / max(now - self._started, 1e-9)
        if details is None:
            left = [f"{duration(max(self.total - done, 0) / max(rate, 1e-9))} left"] if self.total else []
            details = [*left, f"{rate:,.1f} {self.unit}/s"]
        line = f"{self.what} {done}/{self.total}" if self.total else f"{self.what} {done:,} {self.unit}"
        line = ", ".join([line, *details])
        if self._draws:  # a line that is wider than the terminal would wrap, and stay
            self._stream.write(f"\r\033[K{line[: shutil.get_terminal_size().columns - 1]}")
            self._stream.flush()
        else:
            logging.info("%s", line)

    def close(self) -> None:
        """Remove the line, before something else is printed or at the end."""
        if self._draws:
            self._stream.write("\r\033[K")
            self._stream.flush()


def duration(seconds: float | None) -> str:
    """Return a number of seconds as `1:02:03`, `2:03` or `?`."""
    if seconds is None:
        return "?"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
