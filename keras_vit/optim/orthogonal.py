"""Orthogonalization of a matrix that only uses matrix products."""

from typing import Any

from keras import ops

# Coefficients and number of the quintic steps in the reference implementation of Muon. The steps bring singular values
# of at least 0.01 close to 1, but do not converge further.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5


def orthogonalize(matrix: Any) -> Any:
    """Return a matrix with the same singular vectors and singular values of about 1.

    Args:
        matrix: Float32 tensor `[rows, columns]`. A matrix of zeros stays unchanged.

    Example:
    >>> result = orthogonalize(ops.array([[0.0, 2.0], [1.0, 0.0], [0.0, 0.0]]))
    >>> [round(float(value), 1) for value in ops.sqrt(ops.sum(ops.square(result), axis=0))]
    [1.1, 0.7]
    """
    tall = matrix.shape[0] > matrix.shape[1]
    x = ops.transpose(matrix) if tall else matrix  # `square` has the size of the shorter side
    x = x / (ops.sqrt(ops.sum(ops.square(x))) + 1e-7)  # no singular value exceeds 1
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        square = ops.matmul(x, ops.transpose(x))
        x = a * x + ops.matmul(b * square + c * ops.matmul(square, square), x)
    return ops.transpose(x) if tall else x
