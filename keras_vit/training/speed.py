"""Training speed and remaining time."""

import math


class Speed:
    """Smoothed time per step. The first call includes compilation; the second call replaces its result."""

    def __init__(self, batch_size: int):
        self.batch_size = batch_size
        self.seconds_per_step: float | None = None
        self.calls = 0

    def add(self, steps: int, seconds: float) -> None:
        new, self.calls = seconds / steps, self.calls + 1
        if self.seconds_per_step is None or self.calls <= 2:
            self.seconds_per_step = new
        else:
            self.seconds_per_step = 0.7 * self.seconds_per_step + 0.3 * new

    def steps_in(self, seconds: float) -> int:
        return 1 if self.seconds_per_step is None else math.floor(seconds / self.seconds_per_step)

    def seconds_for(self, steps: int) -> float | None:
        return None if self.seconds_per_step is None else steps * self.seconds_per_step

    @property
    def images_per_second(self) -> float:
        return self.batch_size / self.seconds_per_step if self.seconds_per_step else 0.0
