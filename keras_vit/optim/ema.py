"""Moving average of the weights, which is evaluated and exported."""

from typing import Any

from keras import ops


def update_average(average: Any, weight: Any, momentum: float) -> Any:
    """Return `momentum * average + (1 - momentum) * weight`.

    The average starts at the initial weights, without a correction for the start.

    Args:
        average: Average before this step, in float32.
        weight: Weight after this step, of the same shape.
        momentum: Close to 1; 0.9999 averages over about 10,000 steps.

    Returns:
        The average after this step, in float32.

    References:
        - [Acceleration of stochastic approximation by averaging](https://doi.org/10.1137/0330046) (Polyak and Juditsky)

    Example:
    >>> round(float(update_average(ops.array(1.0), ops.array(0.0), momentum=0.9)), 4)
    0.9
    """
    return momentum * average + (1.0 - momentum) * ops.cast(weight, average.dtype)
