"""Progress bar of a training run."""

import shutil
import sys
import time
from typing import TextIO


class ProgressBar:
    """One line that is rewritten on a terminal. Elsewhere nothing is drawn: log lines say the same.

    Args:
        first: Step at which this process starts.
        total: Last step.
        stream: Stream to draw on; the default is standard error, beside the log.
    """

    def __init__(self, first: int, total: int, stream: TextIO | None = None):
        self.first, self.total = first, total
        self.stream = stream or sys.stderr
        self.active = self.stream.isatty()
        self.started: float | None = None

    def update(self, step: int, loss: float, score: float, images_per_second: float, name: str = "accuracy") -> None:
        """Draw the line again, no wider than the terminal."""
        now = time.monotonic()
        if self.started is None:  # the first steps compile, which says nothing about the others
            self.started, self.first = now, step
        if not self.active:
            return
        seconds = (now - self.started) / (step - self.first) * (self.total - step) if step > self.first else None
        filled = 24 * step // self.total
        line = (
            f"step {step}/{self.total} [{'=' * filled}{' ' * (24 - filled)}] loss {loss:.4f} {name} {score:.3f} "
            f"{images_per_second:,.0f} images/s, {duration(seconds)} left"
        )
        columns = shutil.get_terminal_size().columns
        self.stream.write(f"\r\033[K{line[: columns - 1]}")
        self.stream.flush()

    def clear(self) -> None:
        """Remove the line, before something else is printed or at the end."""
        if self.active:
            self.stream.write("\r\033[K")
            self.stream.flush()


def duration(seconds: float | None) -> str:
    """Return a number of seconds as `1:02:03`, `2:03` or `?`."""
    if seconds is None:
        return "?"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
