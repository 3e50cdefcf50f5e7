"""Learning-rate schedules: functions that map a step, counted from 0, to its learning rate.

As in the reference implementations, the decay begins at the end of the warm-up, and the warm-up multiplies its value.
With `warmup_steps > 0`, the rate of step 0 is 0.
"""

import math
from collections.abc import Callable

from keras import ops

from keras_vit.optim.config import Schedule


def create_schedule(schedule: Schedule, base: float, total_steps: int) -> Callable:
    """Return a function that maps a step (a tensor or a number) to its learning rate (a float32 scalar).

    Args:
        schedule: Configuration of the schedule.
        base: Peak learning rate.
        total_steps: Number of steps of the run.

    Raises:
        ValueError: If the name is unknown, or the boundaries do not increase.

    References:
        - [SGDR](https://arxiv.org/abs/1608.03983): `"cosine"`
        - [Scaling Vision Transformers](https://arxiv.org/abs/2106.04560), section 3.5: `"rsqrt"` with cooldown
        - [Big Transfer](https://arxiv.org/abs/1912.11370), section 3.3: `"steps"`

    Example:
    >>> rate = create_schedule(Schedule("cosine", warmup_steps=10), base=0.1, total_steps=110)
    >>> [round(float(rate(step)), 3) for step in (0, 5, 10, 60, 110)]
    [0.0, 0.05, 0.1, 0.05, 0.0]
    """
    if getattr(schedule, "name", None) not in DECAYS:
        names = ", ".join(map(repr, DECAYS))
        raise ValueError(
            f"`schedule` must be a keras_vit.optim.Schedule with one of the names {names}. Received: {schedule!r}"
        )
    if list(schedule.boundaries) != sorted(schedule.boundaries):
        raise ValueError(f"schedule.boundaries must increase. Received: {schedule.boundaries}")
    decay = DECAYS[schedule.name]
    decay_steps = max(1, total_steps - schedule.warmup_steps)

    def rate(step):
        step = ops.cast(step, "float32")
        since_warmup = ops.maximum(step - schedule.warmup_steps, 0.0)
        value = decay(schedule, base, since_warmup, ops.minimum(since_warmup / decay_steps, 1.0))
        if schedule.warmup_steps:
            value = value * ops.minimum(1.0, step / schedule.warmup_steps)
        if schedule.cooldown_steps:
            value = value * ops.minimum(1.0, (total_steps - step) / schedule.cooldown_steps)
        return ops.cast(value, "float32")

    return rate


# Each decay maps (schedule, peak rate, steps since the warm-up, fraction of all steps after the warm-up) to a rate.


def _constant(schedule, base, since_warmup, progress):
    return base * ops.ones_like(progress)


def _cosine(schedule, base, since_warmup, progress):
    return schedule.end + (base - schedule.end) * 0.5 * (1.0 + ops.cos(math.pi * progress))


def _linear(schedule, base, since_warmup, progress):
    return schedule.end + (base - schedule.end) * (1.0 - progress)


def _rsqrt(schedule, base, since_warmup, progress):
    return base / ops.sqrt(1.0 + since_warmup / schedule.timescale)


def _steps(schedule, base, since_warmup, progress):
    value = base * ops.ones_like(progress)
    for boundary in schedule.boundaries:  # the step `boundary` is the first step with the lower rate
        passed = since_warmup + schedule.warmup_steps >= boundary
        value = value * ops.where(passed, schedule.factor, 1.0)
    return value


DECAYS = {"constant": _constant, "cosine": _cosine, "linear": _linear, "rsqrt": _rsqrt, "steps": _steps}
