"""Input normalization: the mean and standard deviation, for pixels in [0, 1], with which weights were trained."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

Normalization = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation, one number per channel

SYMMETRIC: Normalization = ((0.5,), (0.5,))  # [-1, 1]
IMAGENET: Normalization = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def resolve(value: Any) -> Normalization:
    """Check a pair (mean, standard deviation) of numbers or sequences, and return it as a pair of tuples."""
    pair = value if isinstance(value, (list, tuple)) and len(value) == 2 else ()
    sides = [tuple(side) if isinstance(side, (list, tuple)) else (side,) for side in pair]
    channels = max((len(side) for side in sides), default=0)
    sides = [side * channels if len(side) == 1 else side for side in sides]
    if (
        not channels
        or any(len(side) != channels or not all(map(_is_number, side)) for side in sides)
        or min(sides[1]) <= 0
    ):
        raise ValueError(
            "`input_normalization` must be (mean, standard deviation) of pixels in [0, 1], each a number or one number "
            f"per channel, the standard deviation positive. Received: {str(value)[:200]}."
        )
    mean, deviation = (tuple(float(number) for number in side) for side in sides)
    return mean, deviation


def black_and_white(value: Normalization) -> tuple[float, float]:
    """Return the smallest normalized value of black and the largest normalized value of white over the channels."""
    mean, deviation = np.asarray(value)
    return float(np.min((0 - mean) / deviation)), float(np.max((1 - mean) / deviation))


def of_images(model: Any) -> Normalization | None:
    """Return the normalization that a model's images must have, or None if unknown.

    If the model has an `input_range`, the normalization maps pixels to this range. Otherwise, the result is the
    normalization with which the weights were trained.
    """
    input_range = getattr(getattr(model, "config", None), "input_range", None)
    if input_range is None:
        return getattr(model, "input_normalization", None)
    low, high = input_range
    return (-low / (high - low),), (1 / (high - low),)


def operation(value: Normalization | None, input_range: Any = None) -> str | None:
    """Return the preprocessing operation for an `input_range` or a normalization, or None if both are None."""
    if input_range is not None:
        return f"value_range{tuple(input_range)}"
    if value is None:
        return None
    symmetric = all(number == 0.5 for side in value for number in side)
    return "value_range(-1, 1)" if symmetric else f"value_norm({value[0]}, {value[1]})"


def scale_and_offset(value: Normalization, input_range: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the `scale` and `offset`, `[1, 1, channels]`, of the normalized images `images * scale + offset`."""
    low, high = input_range
    mean, deviation = np.asarray(value)[:, None, None]
    return 1 / (high - low) / deviation, (-low / (high - low) - mean) / deviation


def for_channels(value: Normalization, channels: int) -> Normalization | None:
    """Return a normalization for another number of channels, or None if the channels have different normalizations."""
    if len(value[0]) == channels:
        return value
    if all(len(set(side)) == 1 for side in value):
        mean, deviation = (side[:1] * channels for side in value)
        return mean, deviation
    return None


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max


def value_range(function: Callable, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the outputs of a linear preprocessing function for pixels of 0 and of 255, float32 `[c]` each."""
    ends = [np.full((1, 1, 1, channels), value, np.float32) for value in (0.0, 255.0)]
    low, high = (ops.convert_to_numpy(function(ops.convert_to_tensor(end)))[0, 0, 0] for end in ends)
    return low, high
