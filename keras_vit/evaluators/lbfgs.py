"""L-BFGS for smooth convex functions."""

from collections.abc import Callable

import numpy as np

_MEMORY = 20  # steps from which the curvature is estimated
_SUFFICIENT = 1e-4  # share of the decrease promised by the gradient that a step must give
_HALVINGS = 30


def minimize(
    function: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    max_iterations: int,
    tolerance: float = 1e-5,
) -> np.ndarray:
    """Returns where a convex function is least.

    Args:
        function: Takes a vector and returns its value and its gradient.
        start: Where to begin.
        max_iterations: Most steps.
        tolerance: The largest entry of the gradient at which the search ends.

    References:
        Nocedal and Wright, "Numerical Optimization", algorithms 7.4 and 7.5
    """
    x = np.asarray(start, np.float64)
    value, gradient = function(x)
    pairs: list[tuple[np.ndarray, np.ndarray]] = []  # (change of x, change of the gradient)
    for _ in range(max_iterations):
        if np.abs(gradient).max() < tolerance:
            break
        direction = -_inverse_hessian_times(gradient, pairs)
        slope = gradient @ direction
        step = 1.0 if pairs else min(1.0, 1.0 / np.abs(gradient).sum())
        for _ in range(_HALVINGS):
            new_x = x + step * direction
            new_value, new_gradient = function(new_x)
            if new_value <= value + _SUFFICIENT * step * slope:
                break
            step /= 2
        else:
            break  # no smaller value can be told apart in float64
        change, curvature = new_x - x, new_gradient - gradient
        if change @ curvature > 1e-12 * (curvature @ curvature):
            pairs = [*pairs, (change, curvature)][-_MEMORY:]
        x, value, gradient = new_x, new_value, new_gradient
    return x


def _inverse_hessian_times(vector: np.ndarray, pairs) -> np.ndarray:
    """The two loops of the algorithm."""
    result, shares = vector.copy(), []
    for change, curvature in reversed(pairs):
        share = (change @ result) / (change @ curvature)
        shares.append(share)
        result -= share * curvature
    if pairs:
        change, curvature = pairs[-1]
        result *= (change @ curvature) / (curvature @ curvature)
    for (change, curvature), share in zip(pairs, reversed(shares), strict=True):
        result += (share - (curvature @ result) / (change @ curvature)) * change
    return result
