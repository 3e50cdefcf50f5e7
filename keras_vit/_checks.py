"""Argument checks whose messages say what was expected, what came and what to do."""

import difflib
from collections.abc import Iterable, Sequence


def nearest(value: str, choices: Iterable[str]) -> str:
    """Returns a hint naming the choice nearest to `value`, or an empty string."""
    matches = difflib.get_close_matches(str(value), [str(choice) for choice in choices], n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def existing(what: str, name: str, names: Sequence[str]) -> str:
    """Returns `name` when it is one of `names`.

    Args:
        what: Of the message, what there is not, such as `"task 'dtt' in VTAB"`.
        name: What was asked for.
        names: What there is.

    Raises:
        ValueError: If it is not; the message names the nearest and lists all.
    """
    if name in names:
        return name
    raise ValueError(f"There is no {what}.{nearest(name, names)} There are: {', '.join(names)}.")


def choice(name: str, value: object, choices: Sequence[object]) -> object:
    """Returns `value` when it is one of `choices`.

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
    """Returns `value` as an int of at least `minimum`.

    Raises:
        ValueError: If it is not an integer or too small.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < minimum:
        raise ValueError(f"`{name}` must be an integer of at least {minimum}. Received: {name}={value!r}.")
    return int(value)


def rate(name: str, value: object) -> float:
    """Returns `value` as a probability in [0, 1).

    Raises:
        ValueError: If it is outside.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= float(value) < 1.0:
        raise ValueError(f"`{name}` must be a number in [0, 1). Received: {name}={value!r}.")
    return float(value)


def size_pair(name: str, value: object) -> tuple[int, int]:
    """Returns `value`, an integer or a (height, width) pair, as a pair of positive integers.

    Raises:
        ValueError: If it is neither.
    """
    pair = (value, value) if not isinstance(value, (tuple, list)) else tuple(value)
    if len(pair) != 2:
        raise ValueError(f"`{name}` must be an integer or a (height, width) pair. Received: {name}={value!r}.")
    return positive_int(name, pair[0]), positive_int(name, pair[1])


def divisible(name: str, value: int, by_name: str, by: int) -> int:
    """Returns `value` when it is a multiple of `by`.

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
