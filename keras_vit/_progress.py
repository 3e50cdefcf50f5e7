"""Progress of long work: one line on a terminal or in a notebook that fits it, log lines elsewhere."""

import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from absl import logging

_EVERY = 0.2  # seconds between two drawings
_LOG_EVERY = 15.0  # seconds between two log lines
_WIDEST, _NARROWEST = 24, 8  # cells of a bar


class Progress:
    """Progress of one piece of work, on standard error."""

    def __init__(
        self,
        what: str,
        total: int | None,
        enabled: bool = True,
        unit: str = "images",
        stream: TextIO | None = None,
    ):
        self.what, self.total, self.unit, self.done = what, total, unit, 0
        self._stream = stream or sys.stderr
        self._enabled = enabled
        self._draws = enabled and can_draw(self._stream)
        self._started = self._shown = time.monotonic()

    def add(self, count: int) -> None:
        """Note that `count` more units are done."""
        self.update(self.done + count)

    def update(self, done: int) -> None:
        """Note that `done` units are done."""
        self.done = done
        now = time.monotonic()
        if not self._enabled or now - self._shown < (_EVERY if self._draws else _LOG_EVERY):
            return
        self._shown = now
        if self._draws:
            draw(self._stream, *self._parts(now - self._started))
        else:
            what, fraction, details = self._parts(now - self._started)
            logging.info("%s: %s%s", what, "" if fraction is None else f"{fraction:.0%}, ", ", ".join(details))

    def close(self) -> None:
        """Remove the line."""
        if self._draws:
            clear(self._stream)

    def _parts(self, seconds: float) -> tuple[str, float | None, list[str]]:
        rate = self.done / max(seconds, 1e-9)
        speed = f"{rate:,.1f} {self.unit}/s"
        if not self.total:
            return self.what, None, [f"{self.done:,} {self.unit}", speed]
        left = max(self.total - self.done, 0) / max(rate, 1e-9)
        return self.what, min(self.done / self.total, 1.0), [f"{self.done}/{self.total}", f"{left:.0f} s left", speed]


class StepProgress:
    """Progress of training steps on a terminal or in a notebook. Elsewhere, the training's own log lines have it."""

    def __init__(self, first: int, total: int, stream: TextIO | None = None):
        self.first, self.total = first, total
        self.stream = stream or sys.stderr
        self.active = can_draw(self.stream)
        self.started: float | None = None

    def update(self, step: int, loss: float, score: float, images_per_second: float, name: str = "accuracy") -> None:
        """Draw the line again, no wider than the terminal."""
        now = time.monotonic()
        if self.started is None:  # the first steps compile, which says nothing about the others
            self.started, self.first = now, step
        if not self.active:
            return
        seconds = (now - self.started) / (step - self.first) * (self.total - step) if step > self.first else None
        details = [f"loss {loss:.4f}", f"{name} {score:.3f}", f"{duration(seconds)} left"]
        details.append(f"{images_per_second:,.0f} images/s")
        draw(self.stream, f"step {step}/{self.total}", step / self.total, details)

    def clear(self) -> None:
        """Remove the line, before something else is printed or at the end."""
        if self.active:
            clear(self.stream)


def can_draw(stream: TextIO) -> bool:
    """Return whether a line on a stream can be drawn again: on a terminal and in a notebook."""
    return stream.isatty() or "ipykernel" in sys.modules


def draw(stream: TextIO, what: str, fraction: float | None, details: Sequence[str]) -> None:
    """Draw a line over the one before."""
    stream.write(f"\r\033[K{fit(what, fraction, details, width_of(stream) - 1)}")
    stream.flush()


def clear(stream: TextIO) -> None:
    """Remove the line."""
    stream.write("\r\033[K")
    stream.flush()


def fit(what: str, fraction: float | None, details: Sequence[str], columns: int) -> str:
    """Return a line that is no wider than the columns: a narrower bar, no bar, fewer details."""
    details = list(details)
    room = columns - len(f"{what} [] {', '.join(details)}")
    cells = min(room, _WIDEST)
    if fraction is not None and cells >= _NARROWEST:
        filled = int(cells * fraction)
        return f"{what} [{'=' * filled}{' ' * (cells - filled)}] {', '.join(details)}"
    while details and len(f"{what} {', '.join(details)}") > columns:
        details.pop()
    return f"{what} {', '.join(details)}".rstrip()[:columns]


def width_of(stream: TextIO) -> int:
    """Return the number of columns of a terminal; 80 if it does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return shutil.get_terminal_size().columns


def duration(seconds: float | None) -> str:
    """Return a number of seconds as `1:02:03`, `2:03` or `?`."""
    if seconds is None:
        return "?"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
