"""Checks of evaluators' arguments, for their constructors: a mistake is found before a training, not after it."""

import math
import numbers
from collections.abc import Iterable

from keras_vit import _checks


def counts(name: str, value: int | Iterable[int]) -> tuple[int, ...]:
    """Returns one number or several as a tuple of positive integers.

    Raises:
        ValueError: If there is none, or one that is not an integer of at least 1.
    """
    return tuple(_checks.positive_int(name, item) for item in _several(name, value))


def positive(name: str, value: float) -> float:
    """Returns a number above 0.

    Raises:
        ValueError: If it is not.
    """
    return strengths(name, value)[0]


def strengths(name: str, value: float | Iterable[float], zero: bool = False) -> tuple[float, ...]:
    """Returns one number or several as a tuple of finite numbers above 0, or of at least 0 if `zero`.

    Raises:
        ValueError: If there is none, or one that is out of range.
    """
    values = _several(name, value)
    for item in values:
        number = isinstance(item, numbers.Real) and not isinstance(item, bool) and math.isfinite(item)
        if not number or item < 0 or (item == 0 and not zero):
            wanted = "at least 0" if zero else "above 0"
            raise ValueError(f"`{name}` must be a finite number {wanted}. Received: {name}={value!r}.")
    return tuple(float(item) for item in values)


def seeds(value: int | Iterable[int]) -> tuple[int, ...]:
    """Returns the seeds: 0, 1, 2, ... for a number of draws, else those that are given.

    Raises:
        ValueError: If there is none, or one below 0.
    """
    if not isinstance(value, Iterable):
        return tuple(range(_checks.positive_int("seeds", value)))
    return tuple(_checks.positive_int("seeds", item, minimum=0) for item in _several("seeds", value))


def text(name: str, value: str | None) -> str | None:
    """Returns a string that is not empty, or None.

    Raises:
        ValueError: If it is something else.
    """
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"`{name}` must be a string that is not empty. Received: {name}={value!r}.")
    return value


def _several(name: str, value) -> tuple:
    values = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if not values:
        raise ValueError(f"`{name}` must be a number or several. Received: {name}={value!r}.")
    return values
