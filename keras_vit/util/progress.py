"""Progress of long-running work: a single line on a terminal or in a notebook, and log lines elsewhere."""

import io
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, TextIO, TypeVar

from absl import logging

from keras_vit.util import file_io

_EVERY = 0.2  # seconds between two updates of the line
_LOG_FIRST, _LOG_EVERY = 2.0, 15.0  # seconds until the first log line, and between log lines
_TICK = 1.0  # seconds between updates while no unit is completed

_lock = threading.RLock()  # guards the terminal and the variables below
_open: list["Progress"] = []  # nested work, of which only the last (innermost) is shown
_drawn: TextIO | None = None  # the terminal that shows a line

Item = TypeVar("Item")


class Progress:
    """Progress of the work in a `with` block, on standard error.

    On a terminal, the line appears immediately. Until the first unit is completed, the line shows the elapsed time. In
    a log, the first line appears after two seconds, so that short work is not logged.
    """

    def __init__(
        self,
        what: str,
        total: int | None = None,
        enabled: bool = True,
        unit: str = "images",
        stream: TextIO | None = None,
    ):
        self.what, self.total, self.unit, self.done = what, total, unit, 0
        self._stream = stream or sys.stderr
        self._draws = enabled and (self._stream.isatty() or "ipykernel" in sys.modules)
        self._logs = enabled and not self._draws
        self._details: Sequence[str] | None = None
        self._started = time.monotonic()
        self._first: tuple[float, int] | None = None  # time and number of the first completed units
        self._last = self._started  # time of the last completed unit
        self._due = self._started + (0.0 if self._draws else _LOG_FIRST)
        self._closed = threading.Event()

    def __enter__(self) -> "Progress":
        if self._draws or self._logs:
            with _lock:
                _open.append(self)
            self._show()
            threading.Thread(target=self._tick, name="progress", daemon=True).start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._closed.set()
        with _lock:
            if self in _open:
                _open.remove(self)
                hide()

    def add(self, count: int) -> None:
        """Record that `count` more units are completed."""
        self.update(self.done + count)

    def update(self, done: int, details: Sequence[str] | None = None) -> None:
        """Record that `done` units are completed in total. `details` replace the remaining time and the speed."""
        self._last = time.monotonic() if done > self.done else self._last
        self.done, self._details = done, details
        if self._first is None and done:
            self._first = self._last, done
        self._show()

    def postpone(self) -> None:
        """Postpone the next log line, because another line about this work was just logged."""
        if self._logs:
            self._due = time.monotonic() + _LOG_EVERY

    def line(self) -> str:
        """Return the line to show."""
        now = time.monotonic()
        if self._first is None:
            amount = [f"{self.total:,} {self.unit}"] if self.total else []
            return ", ".join([self.what, duration(now - self._started), *amount])
        details = self._details
        if details is None:
            since, before = self._first  # exclude the first units, which include compilation
            if self.done <= before:
                since, before = self._started, 0
            rate = max((self.done - before) / max(self._last - since, 1e-9), 1e-9)
            begun = min((now - self._last) * rate, 1)  # the unit in progress
            left = [f"{duration(max(self.total - self.done - begun, 0) / rate)} left"] if self.total else []
            details = [*left, f"{rate:,.1f} {self.unit}/s"]
        line = f"{self.what} {self.done}/{self.total}" if self.total else f"{self.what} {self.done:,} {self.unit}"
        return ", ".join([line, *details])

    def _show(self) -> None:
        """Show the line if an update is due and no nested work shows its own line."""
        global _drawn
        now = time.monotonic()
        if now < self._due or not (self._draws or self._logs):
            return
        with _lock:
            if not _open or _open[-1] is not self:
                return
            self._due = now + (_EVERY if self._draws else _LOG_EVERY)
            if self._draws:
                _drawn = None  # a line wider than the terminal would wrap and remain
                self._stream.write(f"\r\033[K{self.line()[: shutil.get_terminal_size().columns - 1]}")
                self._stream.flush()
                _drawn = self._stream
                return
        logging.info("%s", self.line())  # outside of the lock: handlers have a lock and write to the terminal

    def _tick(self) -> None:
        while not self._closed.wait(min(_TICK, _LOG_FIRST)):
            self._show()


class Terminal(io.TextIOWrapper):
    """Text stream that removes the progress line before it writes other text."""

    def write(self, text: str) -> int:
        with _lock:
            hide()
            return super().write(file_io.shown(text))


def hide() -> None:
    """Remove the progress line from the terminal, to print other text. The next update shows the line again."""
    global _drawn
    with _lock:
        stream, _drawn = _drawn, None
        if stream is not None:
            stream.write("\r\033[K")
            stream.flush()


def track(
    items: Iterable[Item], what: str, total: int | None = None, unit: str = "images", **options: Any
) -> Iterator[Item]:
    """Yield items and show the progress, with one unit per item. `total` defaults to the number of items if known."""
    total = len(items) if total is None and isinstance(items, Sized) else total
    with Progress(what, total, unit=unit, **options) as bar:
        for item in items:
            yield item
            bar.add(1)


def current() -> str | None:
    """Return the line of the current work, or None."""
    with _lock:
        return _open[-1].line() if _open else None


def duration(seconds: float | None) -> str:
    """Format a number of seconds as `1:02:03` or `2:03`, and None as `?`."""
    if seconds is None:
        return "?"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
