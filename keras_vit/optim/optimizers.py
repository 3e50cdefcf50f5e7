"""The optimizers of the reference implementations, as pure functions of one weight and its slots.

`keras.optimizers` uses different formulas under the same names. Keras' SGD applies the learning rate inside the
momentum. Keras' Adam adds epsilon before the bias correction of the second moment. Neither can store the momentum in
bfloat16. The results differ if the learning rate changes, if gradients are small, or in long runs.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_vit.optim.config import Optim

Slots = Sequence[Any]  # the tensors that an optimizer keeps for one weight
_RMS = 0.2  # RMS of the entries of Muon's direction, about the same as for AdamW
# Coefficients and number of the quintic steps in the reference implementation of Muon. The steps bring singular values
# of at least 0.01 close to 1, but do not converge further.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5


class Slot(NamedTuple):
    """A tensor that an optimizer keeps for each weight, with the weight's shape and initialized with zeros."""

    name: str
    dtype: str


class _Formula:
    """Base class of the optimizers."""

    def __repr__(self) -> str:
        name = type(self).__name__
        return (
            f"<keras_vit.optim.{name}, for the package's own training; `compile` takes optimizers of keras.optimizers>"
        )


class Momentum(_Formula):
    """Gradient descent with heavy-ball momentum. The learning rate is applied outside the momentum.

    `m <- g + momentum * m`, then `w <- w - rate * (m + weight_decay * w)`.

    Args:
        momentum: Fraction of the old direction that is kept. 0 is plain gradient descent.
        nesterov: Whether to step along `g + momentum * m` instead of `m`.
        momentum_dtype: Dtype in which `m` is stored between steps. Each step uses its new `m` in float32.

    References:
        - [On the importance of initialization and momentum](https://proceedings.mlr.press/v28/sutskever13.html)

    Example:
    >>> optimizer = Momentum(momentum=0.9)
    >>> direction, (momentum,) = optimizer.direction(ops.array(1.0), [ops.array(2.0)], step=0)
    >>> round(float(direction), 4), round(float(momentum), 4)
    (2.8, 2.8)
    """

    def __init__(self, momentum: float = 0.9, nesterov: bool = False, momentum_dtype: str = "float32"):
        self.momentum = momentum
        self.nesterov = nesterov
        self.slots = (Slot("momentum", momentum_dtype),) if momentum else ()

    def direction(self, gradient: Any, slots: Slots, step: Any, weight: Any = None) -> tuple[Any, Slots]:
        """Return the direction of descent and the new slots; see `AdamW.direction`."""
        if not self.slots:
            return gradient, ()
        momentum = gradient + _scaled(slots[0], self.momentum)
        direction = gradient + self.momentum * momentum if self.nesterov else momentum
        return direction, (ops.cast(momentum, self.slots[0].dtype),)


class LARS(Momentum):
    """Momentum whose gradients are scaled to a fraction of the weight's norm, separately for each weight.

    `m <- trust * |w| / |g| * g + momentum * m`, then `w <- w - rate * m`. Gradients of vectors, of scalars and of
    weights that are zero are not scaled. Weight decay is decoupled, as in the other optimizers. The paper instead adds
    the weight decay to the gradient before scaling.

    Args:
        momentum: Fraction of the old direction that is kept. 0 disables momentum.
        trust: Norm of the scaled gradient, relative to the norm of the weight.
        momentum_dtype: Dtype in which `m` is stored between steps. Each step uses its new `m` in float32.

    References:
        - [Large Batch Training of Convolutional Networks](https://arxiv.org/abs/1708.03888)
        - [Masked Autoencoders Are Scalable Vision Learners](https://arxiv.org/abs/2111.06377), table 10

    Example:
    >>> optimizer = LARS(momentum=0.9)
    >>> weight, gradient = ops.array([[3.0, 4.0]]), ops.array([[0.0, 2.0]])
    >>> direction, _ = optimizer.direction(gradient, [ops.zeros((1, 2))], step=0, weight=weight)
    >>> round(float(direction[0, 1]), 6)
    0.005
    """

    def __init__(self, momentum: float = 0.9, trust: float = 1e-3, momentum_dtype: str = "float32"):
        super().__init__(momentum, momentum_dtype=momentum_dtype)
        self.trust = trust

    def direction(self, gradient: Any, slots: Slots, step: Any, weight: Any = None) -> tuple[Any, Slots]:
        """Return the direction of descent and the new slots; see `AdamW.direction`."""
        if len(weight.shape) > 1:
            norm, of_gradient = global_norm([weight]), global_norm([gradient])
            scaled = (norm > 0.0) & (of_gradient > 0.0)
            gradient = gradient * ops.where(scaled, self.trust * norm / ops.where(scaled, of_gradient, 1.0), 1.0)
        return super().direction(gradient, slots, step)


class Muon(Momentum):
    """Momentum with orthogonalized updates, so that all singular directions of a matrix learn at the same speed.

    `m <- g + momentum * m`, then `w <- w - rate * (0.2 sqrt(max(rows, columns)) * O(m) + weight_decay * w)`. `O` keeps
    the singular vectors. A Newton-Schulz iteration brings the singular values into the range of about 0.7 to 1.2. The
    factor gives the update the size of an AdamW step, so that learning rates and weight decays of AdamW can be used.

    Args:
        momentum: Fraction of the old direction that is kept.
        nesterov: Whether to orthogonalize `g + momentum * m` instead of `m`.
        momentum_dtype: Dtype in which `m` is stored between steps. Each step uses its new `m` in float32.
        input_axes: Number of leading axes of a weight that are inputs. Input axes form the rows of the matrix, and the
            other axes form its columns. None selects all axes except the last, as in a dense or convolutional layer.

    References:
        - [Muon](https://kellerjordan.github.io/posts/muon/)
        - [Muon is Scalable for LLM Training](https://arxiv.org/abs/2502.16982), for the factor on the update

    Example:
    >>> optimizer = Muon(momentum=0.95)
    >>> gradient = ops.array([[3.0, 0.0], [0.0, 1.0]])
    >>> direction, _ = optimizer.direction(gradient, [ops.zeros((2, 2))], step=0)
    >>> bool(ops.all(ops.abs(direction / (0.2 * 2**0.5) - ops.eye(2)) < 0.35))
    True
    """

    def __init__(
        self,
        momentum: float = 0.95,
        nesterov: bool = False,
        momentum_dtype: str = "float32",
        input_axes: int | None = None,
    ):
        super().__init__(momentum, nesterov, momentum_dtype)
        self.input_axes = input_axes

    def direction(self, gradient: Any, slots: Slots, step: Any, weight: Any = None) -> tuple[Any, Slots]:
        """Return the direction of descent and the new slots; see `AdamW.direction`."""
        direction, slots = super().direction(gradient, slots, step)
        shape = tuple(direction.shape)
        inputs = len(shape) - 1 if self.input_axes is None else self.input_axes
        rows, columns = math.prod(shape[:inputs]), math.prod(shape[inputs:])
        matrix = orthogonalize(ops.reshape(direction, (rows, columns)))
        return ops.reshape(matrix * (_RMS * math.sqrt(max(rows, columns))), shape), slots


def orthogonalize(matrix: Any) -> Any:
    """Return a float32 matrix with the same singular vectors and singular values of about 1. Zeros stay zeros."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = ops.transpose(matrix) if tall else matrix  # `square` has the size of the shorter side
    x = x / (ops.sqrt(ops.sum(ops.square(x))) + 1e-7)  # no singular value exceeds 1
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        square = ops.matmul(x, ops.transpose(x))
        x = a * x + ops.matmul(b * square + c * ops.matmul(square, square), x)
    return ops.transpose(x) if tall else x


class AdamW(_Formula):
    """Adam with epsilon outside the square root and with decoupled weight decay.

    `m <- beta1 m + (1 - beta1) g` and `v <- beta2 v + (1 - beta2) g^2`, both with bias correction, then
    `w <- w - rate * (m / (sqrt(v) + epsilon) + weight_decay * w)`.

    Args:
        beta1: Exponential decay rate of the first moment.
        beta2: Exponential decay rate of the second moment.
        epsilon: Added to the square root of the second moment.
        momentum_dtype: Dtype in which `m` is stored between steps. Each step uses its new `m` in float32.

    References:
        - [Adam](https://arxiv.org/abs/1412.6980)
        - [Decoupled Weight Decay Regularization](https://arxiv.org/abs/1711.05101)

    Example:
    >>> optimizer = AdamW()
    >>> direction, slots = optimizer.direction(ops.array(0.5), [ops.array(0.0), ops.array(0.0)], step=0)
    >>> round(float(direction), 4)  # the first step has the size of the learning rate
    1.0
    """

    def __init__(
        self, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, momentum_dtype: str = "float32"
    ):
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.slots = (Slot("first_moment", momentum_dtype), Slot("second_moment", "float32"))

    def direction(self, gradient: Any, slots: Slots, step: Any, weight: Any = None) -> tuple[Any, Slots]:
        """Return the direction of descent and the new slots.

        Args:
            gradient: Gradient of one weight, float32.
            slots: Slots of the weight, in the order of `self.slots`.
            step: Number of updates before this one, an integer scalar.
            weight: The weight. Only `LARS` needs it.

        Returns:
            `(direction, new slots)`. `apply_direction` computes the new weight from the direction.
        """
        first = (1.0 - self.beta1) * gradient + _scaled(slots[0], self.beta1)
        second = (1.0 - self.beta2) * ops.square(gradient) + self.beta2 * slots[1]
        updates = ops.cast(step, "float32") + 1.0
        first_corrected = first / (1.0 - ops.power(self.beta1, updates))
        second_corrected = second / (1.0 - ops.power(self.beta2, updates))
        direction = first_corrected / (ops.sqrt(second_corrected) + self.epsilon)
        return direction, (ops.cast(first, self.slots[0].dtype), second)


def apply_direction(weight: Any, direction: Any, rate: Any, weight_decay: float = 0.0) -> Any:
    """Return `weight - rate * (direction + weight_decay * weight)` in the weight's dtype, computed in float32."""
    value = ops.cast(weight, "float32")
    if weight_decay:
        direction = direction + weight_decay * value
    return ops.cast(value - rate * direction, weight.dtype)


def global_norm(gradients: Iterable[Any]) -> Any:
    """Return the Euclidean norm of all gradients together, a float32 scalar."""
    return ops.sqrt(sum(ops.sum(ops.square(ops.cast(gradient, "float32"))) for gradient in gradients))


# Optimizers by `recipe.Optim.name`.
OPTIMIZERS: dict[str, Callable[[Optim], Momentum | AdamW]] = {
    "sgd": lambda optim: Momentum(optim.momentum, optim.nesterov, optim.momentum_dtype),
    "lars": lambda optim: LARS(optim.momentum, momentum_dtype=optim.momentum_dtype),
    "muon": lambda optim: Muon(optim.momentum, optim.nesterov, optim.momentum_dtype),
    "adamw": lambda optim: AdamW(optim.beta1, optim.beta2, optim.epsilon, optim.momentum_dtype),
}


def create_optimizer(optim: Optim) -> Momentum | AdamW:
    """Return the optimizer of a recipe.

    Raises:
        ValueError: If the name is unknown.

    Example:
    >>> optimizer = create_optimizer(Optim("sgd", momentum=0.9, momentum_dtype="bfloat16"))
    >>> [slot.name for slot in optimizer.slots]
    ['momentum']
    """
    name = getattr(optim, "name", None)
    if name not in OPTIMIZERS:
        names = ", ".join(map(repr, OPTIMIZERS))
        raise ValueError(f"`optim` must be a keras_vit.optim.Optim named one of {names}. Received: {optim!r}")
    return OPTIMIZERS[name](optim)


def _scaled(slot, factor: float):
    """Return `factor * slot` in float32. As in the reference, a bfloat16 slot is multiplied and rounded in bfloat16.

    XLA may omit a rounding between two operations in float32. On JAX, where the whole step is one program, a separate
    operation therefore does the rounding.
    """
    result = ops.cast(factor, slot.dtype) * slot
    if keras.backend.backend() == "jax" and keras.backend.standardize_dtype(slot.dtype) == "bfloat16":
        import jax

        result = jax.lax.reduce_precision(result, exponent_bits=8, mantissa_bits=7)
    return ops.cast(result, "float32")
