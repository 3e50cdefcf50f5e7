"""Progress bar of a training run."""

import sys
import time
from typing import TextIO

from keras_vit import _progress


class ProgressBar:
    """One line that is rewritten on a terminal. Elsewhere nothing is drawn: log lines say the same."""

    def __init__(self, first: int, total: int, stream: TextIO | None = None):
        self.first, self.total = first, total
        self.stream = stream or sys.stderr
        self.active = _progress.can_draw(self.stream)
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
        _progress.draw(self.stream, f"step {step}/{self.total}", step / self.total, details)

    def clear(self) -> None:
        """Remove the line, before something else is printed or at the end."""
        if self.active:
            _progress.clear(self.stream)


def duration(seconds: float | None) -> str:
    """Return a number of seconds as `1:02:03`, `2:03` or `?`."""
    if seconds is None:
        return "?"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
