"""Argument checks whose messages say what was expected, what came and what to do."""

import difflib
import math
import numbers
from collections.abc import Iterable, Sequence
from typing import TypeVar

Value = TypeVar("Value")


def nearest(value: str, choices: Iterable[object]) -> str:
    """Return a hint naming the choice nearest to `value`, or an empty string."""
    matches = difflib.get_close_matches(str(value), [str(choice) for choice in choices], n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def existing(what: str, name: str, names: Sequence[str]) -> str:
    """Return `name` if it is one of `names`.

    Args:
        what: Missing thing that the message names, such as `"task 'dtt' in VTAB"`.
        name: Requested name.
        names: Available names.

    Raises:
        ValueError: If it is not; the message names the nearest and lists all.
    """
    if name in names:
        return name
    raise ValueError(f"There is no {what}.{nearest(name, names)} Available: {', '.join(names)}.")


def choice(name: str, value: Value, choices: Sequence[object]) -> Value:
    """Return `value` when it is one of `choices`.

    Raises:
        ValueError: If it is not; the message lists the choices.
    """
    # `in` compares with ==, so 1 would pass for True: types are compared as well.
    if any(value == item and type(value) is type(item) for item in choices):
        return value
    raise ValueError(
        f"`{name}` must be one of {', '.join(map(repr, choices))}. Received: {name}={value!r}."
        f"{nearest(value, choices) if isinstance(value, str) else ''}"
    )


def positive_int(name: str, value: object, minimum: int = 1) -> int:
    """Return `value` as an int of at least `minimum`.

    Raises:
        ValueError: If it is not an integer or too small.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < minimum:
        raise ValueError(f"`{name}` must be an integer of at least {minimum}. Received: {name}={value!r}.")
    return int(value)


def rate(name: str, value: object) -> float:
    """Return `value` as a probability in [0, 1).

    Raises:
        ValueError: If it is outside.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= float(value) < 1.0:
        raise ValueError(f"`{name}` must be a number in [0, 1). Received: {name}={value!r}.")
    return float(value)


def size_pair(name: str, value: object) -> tuple[int, int]:
    """Return `value`, an integer or a (height, width) pair, as a pair of positive integers.

    Raises:
        ValueError: If it is neither.
    """
    pair = (value, value) if not isinstance(value, (tuple, list)) else tuple(value)
    if len(pair) != 2:
        raise ValueError(f"`{name}` must be an integer or a (height, width) pair. Received: {name}={value!r}.")
    return positive_int(name, pair[0]), positive_int(name, pair[1])


def divisible(name: str, value: int, by_name: str, by: int) -> int:
    """Return `value` when it is a multiple of `by`.

    Raises:
        ValueError: If it is not; the message names the nearest multiples.
    """
    if value % by:
        below = value // by * by
        near = f"{below} or {below + by}" if below else f"{by}"
        raise ValueError(
            f"`{name}` must be a multiple of `{by_name}`={by}. Received: {name}={value}. The nearest that work: {near}."
        )
    return value


def positive_ints(name: str, value: object, minimum: int = 1) -> tuple[int, ...]:
    """Return one integer or several as a tuple.

    Raises:
        ValueError: If there is none, or one is not an integer of at least `minimum`.
    """
    return tuple(positive_int(name, item, minimum) for item in _several(name, value))


def finite_number(name: str, value: object, zero: bool = False) -> float:
    """Return `value` as a finite number above 0, or of at least 0 if `zero`.

    Raises:
        ValueError: If it is something else.
    """
    return finite_numbers(name, value, zero)[0]


def finite_numbers(name: str, value: object, zero: bool = False) -> tuple[float, ...]:
    """Return one number or several as a tuple of finite numbers above 0, or of at least 0 if `zero`.

    Raises:
        ValueError: If there is none, or one is out of range.
    """
    values = _several(name, value)
    for item in values:
        number = isinstance(item, numbers.Real) and not isinstance(item, bool) and math.isfinite(item)
        if not number or item < 0 or (item == 0 and not zero):
            wanted = "at least 0" if zero else "above 0"
            raise ValueError(f"`{name}` must be a finite number {wanted}. Received: {name}={value!r}.")
    return tuple(float(item) for item in values)


def optional_text(name: str, value: object) -> str | None:
    """Return `value` if it is None or a string that is not empty.

    Raises:
        ValueError: If it is something else.
    """
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"`{name}` must be a string that is not empty. Received: {name}={value!r}.")
    return value


def _several(name: str, value: object) -> tuple:
    values = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if not values:
        raise ValueError(f"`{name}` must be a number or several. Received: {name}={value!r}.")
    return values
