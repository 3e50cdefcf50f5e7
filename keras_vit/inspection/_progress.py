"""A progress bar for loops over images: one line on a terminal or in a notebook, log lines elsewhere."""

import sys
import time
from typing import TextIO

from absl import logging

_EVERY = 0.2  # seconds between two drawings
_LOG_EVERY = 15.0  # seconds between two log lines


class Progress:
    """Counts images.

    Args:
        what: Name of the work.
        total: Number of images, None where it is not known.
        enabled: Whether anything is shown.
        stream: Where to draw; the default is standard error.
    """

    def __init__(self, what: str, total: int | None, enabled: bool = True, stream: TextIO | None = None):
        self.what, self.total, self.done = what, total, 0
        self._stream = stream or sys.stderr
        self._enabled = enabled
        self._draws = enabled and (self._stream.isatty() or "ipykernel" in sys.modules)
        self._started = self._shown = time.monotonic()

    def add(self, count: int) -> None:
        """Notes that `count` more images are done."""
        self.done += count
        now = time.monotonic()
        if not self._enabled or now - self._shown < (_EVERY if self._draws else _LOG_EVERY):
            return
        self._shown = now
        text = self._text(now - self._started)
        if self._draws:
            self._stream.write(f"\r{text}\033[K")
            self._stream.flush()
        else:
            logging.info("%s", text)

    def close(self) -> None:
        """Removes the line."""
        if self._draws:
            self._stream.write("\r\033[K")
            self._stream.flush()

    def _text(self, seconds: float) -> str:
        rate = self.done / max(seconds, 1e-9)
        if not self.total:
            return f"{self.what}: {self.done} images, {rate:.1f} images/s"
        filled = min(24 * self.done // self.total, 24)
        left = max(self.total - self.done, 0) / max(rate, 1e-9)
        bar = f"[{'=' * filled}{' ' * (24 - filled)}]"
        return f"{self.what} {bar} {self.done}/{self.total}, {rate:.1f} images/s, {left:.0f} s left"
