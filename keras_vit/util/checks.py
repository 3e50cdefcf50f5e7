"""Argument checks. The messages contain the expected value, the received value and a remedy."""

import difflib
import math
import numbers
import os
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

Value = TypeVar("Value")


def nearest(value: str, choices: Iterable[object]) -> str:
    """Return a hint with the choice most similar to `value`, or an empty string."""
    return did_you_mean(closest(value, choices))


def closest(value: str, choices: Iterable[object], similarity: float = 0.6) -> list[str]:
    """Return the choice most similar to `value`, if there is one. Words of up to three letters resemble too many.

    `similarity` is the minimum ratio of `difflib`. A larger number suits many choices.
    """
    return difflib.get_close_matches(str(value), map(str, choices), 1, similarity) if len(str(value)) >= 4 else []


def did_you_mean(names: Iterable[str]) -> str:
    """Return a hint with names, or an empty string if there are none."""
    text = " or ".join(map(repr, names))
    return f" Did you mean {text}?" if text else ""


def described(value: object) -> str:
    """Describe a value for a message by its shape, keys, length or type. Short values are shown in full."""
    kind = type(value).__name__
    if isinstance(value, dict):
        return f"{kind} with the keys {list(value)}"
    if hasattr(value, "shape"):
        return f"shape {tuple(value.shape)}" if hasattr(value.shape, "__iter__") else kind
    if isinstance(value, (list, tuple)):
        return f"{kind} of {len(value)}"
    return repr(value) if value is None or isinstance(value, (str, int, float)) else kind


def numbers_of(name: str, value: object, expected: str = "an array of numbers", ndim: int | None = None) -> np.ndarray:
    """Convert `value` to an array of numbers."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind in "OSUM" or (ndim is not None and array.ndim != ndim):
        raise ValueError(f"`{name}` must be {expected}. Received: {described(value)}.")
    return array


def instance(name: str, value: Value, kind: type, example: str) -> Value:
    """Return `value` if it is an instance of `kind`."""
    if not isinstance(value, kind):
        raise ValueError(f"`{name}` must be a {kind.__name__}: {example}. Received: {name}={described(value)}.")
    return value


def sequence(name: str, value: object, of: str) -> tuple:
    """Convert an iterable that is not a string to a tuple."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ValueError(f"`{name}` must be a list of {of}. Received: {name}={described(value)}.")
    return tuple(value)


def class_index(value: object, num_classes: int, num_images: int | None = None) -> np.ndarray:
    """Return class numbers as an integer array: a scalar, or one number per image if `num_images` is given."""
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.shape not in ((), (num_images,)):
        each = "" if num_images is None else f", or one for each of the {num_images} images"
        raise ValueError(f"`class_index` must be a class number{each}. Received: class_index={value!r}.")
    array = array if num_images is None else np.broadcast_to(array, (num_images,))
    if array.min() < 0 or array.max() >= num_classes:
        raise ValueError(f"`class_index` must be in 0..{num_classes - 1}. Received: class_index={array.tolist()}.")
    return array


def composed(name: object) -> str:
    """Normalize a name to the Unicode form NFC, so that names that look the same are equal."""
    return unicodedata.normalize("NFC", str(name))


def class_numbers(names: Sequence[str], known: Sequence[str]) -> np.ndarray:
    """Return the index in `known` of each class name, or -1 if it is missing. Case and Unicode form are ignored."""
    if tuple(names) == tuple(known):
        return np.arange(len(known))
    found, doubtful = np.full(len(names), -1), []
    for form in (composed, lambda name: composed(composed(name).casefold())):  # prefer a name with the same case
        indices: dict[str, list[int]] = {}
        for index, name in enumerate(known):
            indices.setdefault(form(name), []).append(index)
        for row in np.flatnonzero(found < 0).tolist():
            found[row], *others = indices.get(form(names[row]), [-1])
            doubtful += [names[row]] if others else []
    doubtful += [name for name, index in zip(names, found, strict=True) if index >= 0 and (found == index).sum() > 1]
    if doubtful:
        raise ValueError(
            "Class names must differ in more than their case and Unicode form to be compared with others. Received: "
            f"{doubtful[:5]}. Rename these classes."
        )
    return found


def existing(what: str, name: str, names: Sequence[str]) -> str:
    """Return `name` if it is in `names`."""
    if name in names:
        return name
    raise ValueError(f"There is no {what}.{nearest(name, names)} Available: {', '.join(names)}.")


def path(name: str, value: object) -> str:
    """Convert a path to a string."""
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError(f"`{name}` must be a string or a path. Received: {name}={described(value)}.")
    return os.fspath(value)


def choice(name: str, value: Value, choices: Sequence[object]) -> Value:
    """Return `value` if it is in `choices`."""
    # `in` compares with ==, and 1 == True: compare the types as well.
    if any(type(value) is type(item) and value == item for item in choices):
        return value
    raise ValueError(
        f"`{name}` must be one of {', '.join(map(repr, choices))}. Received: {name}={described(value)}."
        f"{nearest(value, choices) if isinstance(value, str) else ''}"
    )


def positive_int(name: str, value: object, minimum: int = 1) -> int:
    """Return `value` if it is an integer of at least `minimum`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < minimum:
        raise ValueError(f"`{name}` must be an integer of at least {minimum}. Received: {name}={value!r}.")
    return int(value)


def rate(name: str, value: object) -> float:
    """Return `value` if it is a number in [0, 1)."""
    return _number(name, value, "a number in [0, 1)", lambda number: 0.0 <= number < 1.0)


def size_pair(name: str, value: object) -> tuple[int, int]:
    """Convert an integer or a (height, width) pair to a pair of positive integers."""
    pair = (value, value) if not isinstance(value, (tuple, list)) else tuple(value)
    if len(pair) != 2:
        raise ValueError(f"`{name}` must be an integer or a (height, width) pair. Received: {name}={value!r}.")
    return positive_int(name, pair[0]), positive_int(name, pair[1])


def divisible(name: str, value: int, by_name: str, by: int) -> int:
    """Return `value` if it is a multiple of `by`."""
    if value % by:
        below = value // by * by
        near = f"{below} or {below + by}" if below else f"{by}"
        raise ValueError(
            f"`{name}` must be a multiple of `{by_name}`={by}. Received: {name}={value}. The nearest multiples: {near}."
        )
    return value


def positive_ints(name: str, value: object, minimum: int = 1) -> tuple[int, ...]:
    """Convert an integer or several integers to a tuple."""
    return tuple(positive_int(name, item, minimum) for item in _several(name, value))


def any_number(name: str, value: object) -> float:
    """Return `value` if it is a finite number."""
    return _number(name, value, "a finite number", lambda number: True)


def finite_number(name: str, value: object, zero: bool = False) -> float:
    """Return `value` if it is a finite number above 0, or at least 0 with `zero`."""
    if zero:
        return _number(name, value, "a finite number at least 0", lambda number: number >= 0)
    return _number(name, value, "a finite number above 0", lambda number: number > 0)


def _number(name: str, value: object, wanted: str, is_valid: Callable[[float], bool]) -> float:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not is_valid(float(value)):  # type: ignore[arg-type]
        raise ValueError(f"`{name}` must be {wanted}. Received: {name}={described(value)}.")
    return float(value)  # type: ignore[arg-type]


def finite_numbers(name: str, value: object, zero: bool = False) -> tuple[float, ...]:
    """Convert a number or several numbers to a tuple; each must be finite and above 0, or at least 0 with `zero`."""
    return tuple(finite_number(name, item, zero) for item in _several(name, value))


def interval(name: str, value: object) -> tuple[float, float]:
    """Return `value` as a pair of finite numbers, (smaller, larger)."""
    pair = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(pair) != 2 or not any_number(name, pair[0]) < any_number(name, pair[1]):
        raise ValueError(f"`{name}` must be (smallest, largest), such as (0, 255). Received: {name}={value!r}.")
    return float(pair[0]), float(pair[1])


def optional_text(name: str, value: object) -> str | None:
    """Return `value` if it is None or a non-empty string."""
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"`{name}` must be a string that is not empty. Received: {name}={value!r}.")
    return value


def _several(name: str, value: object) -> tuple:
    values = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if not values:
        raise ValueError(f"`{name}` must be a number or several. Received: {name}={value!r}.")
    return values


def listed(names: Sequence[str], most: int = 5) -> str:
    """Join the first names, and append the number of the remaining names."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
