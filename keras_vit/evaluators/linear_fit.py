"""Linear maps from features to targets, fitted in float64. Cross-validation chooses the regularization."""

from collections.abc import Callable, Sequence

import numpy as np
import threadpoolctl
from scipy import optimize, special

from keras_vit.evaluators.features import standardization
from keras_vit.util.progress import track

STRENGTHS = tuple(10.0 ** (-k / 2) for k in range(-2, 13))  # of the regularization, strongest first
DEFAULT_STRENGTH = 0.1  # for too few examples to hold any out
FOLDS = 5
HELD_OUT = 2_000  # examples or patches, after which the other folds are not held out
MAX_ITERATIONS = 200  # L-BFGS iterations per fit
_TOLERANCE = 1e-5  # largest entry of the scaled gradient at the solution
_ROUGH = 1e-6  # relative decrease of the loss at which the fits of a comparison end
_SMALL = 10**9  # multiplications per product, below which threads take more time than they save
_WORSE = 2  # strengths in a row with a larger loss, after which weaker ones are not tried
# Maps outputs `[..., C]` and targets `[..., C]` to the mean loss and its gradient.
Loss = Callable[[np.ndarray, np.ndarray], tuple[float, np.ndarray]]


def softmax_loss(logits: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean cross-entropy and its gradient. Targets that sum to 0 are not counted."""
    log_probabilities, count = special.log_softmax(logits, axis=-1), targets.sum()
    error = np.exp(log_probabilities) * targets.sum(axis=-1, keepdims=True) - targets
    return -(targets * log_probabilities).sum() / count, error / count


def sigmoid_loss(logits: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean of the binary cross-entropies, summed over the classes, and its gradient."""
    count = logits[..., 0].size
    return (np.logaddexp(0, logits) - targets * logits).sum() / count, (special.expit(logits) - targets) / count


def squared_loss(outputs: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """Return half of the mean of the squared errors, summed over the values, and its gradient."""
    error, count = outputs - targets, outputs[..., 0].size
    return 0.5 * (error**2).sum() / count, error / count


LOSSES: dict[str, Loss] = {"softmax": softmax_loss, "sigmoid": sigmoid_loss, "squared": squared_loss}


def on_grid(loss: Loss, rows: np.ndarray, columns: np.ndarray) -> Loss:
    """Return a loss of outputs `[..., h, w, C]` that are first resized by the matrices `[Y, h]` and `[X, w]`."""

    def of_patches(logits: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
        value, error = loss(_resized(logits, rows, columns), targets)  # [..., Y, X, C]
        return value, _resized(error, rows.T, columns.T)

    return of_patches


def _resized(values: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    planes = np.ascontiguousarray(np.moveaxis(values, -1, 0))  # [C, ..., h, w]: NumPy reduces the outer axis faster
    return np.moveaxis(rows @ planes @ columns.T, 0, -1)  # [..., Y, X, C]


def _threads(multiplications: int) -> threadpoolctl.threadpool_limits:
    """Return a context in which small products are computed on one thread."""
    return threadpoolctl.threadpool_limits(1 if multiplications < _SMALL else None, "blas")


class LinearFit:
    """Linear map from standardized features to targets, with the smallest mean loss plus regularization.

    The regularization is `l2 / 2` times the sum of the squared weights, without the biases. L-BFGS works along the
    principal axes of the features, divided by the square root of an estimate of the curvature. This does not change the
    solution, and takes a fraction of the L-BFGS iterations.

    Args:
        features: One or several views of each example, `[V, N, ..., D]`.
        targets: Targets of each example, `[N, ..., C]`.
        loss: Loss and gradient.
    """

    def __init__(self, features: np.ndarray, targets: np.ndarray, loss: Loss):
        self.targets, self.loss = np.asarray(targets, np.float64), loss
        rows = features.reshape(-1, features.shape[-1]).astype(np.float64)
        self.mean, self.deviation = standardization(rows)
        rows = (rows - self.mean) / self.deviation
        with _threads(rows.size * rows.shape[1]):
            variances, axes = np.linalg.eigh(rows.T @ rows / len(rows))
            varies = variances > 1e-10 * variances[-1]
            self.variances, self.axes = variances[varies, None], axes[:, varies]  # [d, 1], [D, d]
            self.x = (rows @ self.axes).reshape(*features.shape[:-1], -1)  # [V, N, ..., d]

    def solve(
        self,
        l2: float,
        chosen: np.ndarray | slice = slice(None),
        start: np.ndarray | None = None,
        decrease: float = 0.0,
    ) -> np.ndarray:
        """Return the parameters `[d + 1, C]` for the chosen examples.

        `start` are the parameters of a similar fit. The fit ends if the loss decreases by less than the factor
        `decrease`, with products in float32, or at the solution.
        """
        x = self.x[:, chosen]
        targets = np.broadcast_to(self.targets[chosen], (len(x), *self.targets[chosen].shape))
        precision = np.float32 if decrease else np.float64  # of the products, which take most of the time
        rows = x.reshape(-1, x.shape[-1]).astype(precision, copy=False)
        scale = (self.variances / 4 + l2) ** -0.5  # [d, 1]
        shape = (len(scale) + 1, targets.shape[-1])

        def loss_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
            scaled, bias = np.split(flat.reshape(shape), [-1])
            weights = scale * scaled
            loss, error = self.loss((rows @ weights.astype(precision) + bias).reshape(*x.shape[:-1], -1), targets)
            error = error.reshape(-1, shape[1])
            gradient = scale * (rows.T @ error.astype(precision) + l2 * weights)
            total = loss + 0.5 * l2 * (weights**2).sum()
            return total, np.concatenate([gradient, error.sum(axis=0, keepdims=True)]).ravel()

        all_scales = np.append(scale, [[1.0]], axis=0)
        options = {"maxiter": MAX_ITERATIONS, "gtol": _TOLERANCE, "ftol": decrease, "maxcor": 20, "maxfun": 10**9}
        with _threads(rows.size * shape[1]):
            found = optimize.minimize(
                loss_and_gradient,
                np.zeros(shape).ravel() if start is None else (start / all_scales).ravel(),
                jac=True,
                method="L-BFGS-B",
                options=options,
            )
        return found.x.reshape(shape) * all_scales

    def outputs(self, parameters: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return the outputs for the first views of the chosen examples, `[n, ..., C]`."""
        return self.x[0, chosen] @ parameters[:-1] + parameters[-1]

    def loss_of(self, parameters: np.ndarray, chosen: np.ndarray) -> float:
        """Return the mean loss of the first views of the chosen examples."""
        return self.loss(self.outputs(parameters, chosen), self.targets[chosen])[0]

    def choose(self, folds: np.ndarray, strengths: Sequence[float] = STRENGTHS) -> tuple[float, float | None]:
        """Return the strength with the smallest loss on examples that are held out, and this loss.

        `folds` is the result of `stratified_folds`. Without a fold, the loss is None.
        """
        held_out = [folds == fold for fold in np.unique(folds[folds >= 0])]
        counts = np.cumsum([self.x[0, held, ..., 0].size for held in held_out])
        held_out = held_out[: 1 + int(np.searchsorted(counts, HELD_OUT))]
        if not held_out:
            return DEFAULT_STRENGTH, None
        losses: dict[float, float] = {}
        starts: list[np.ndarray | None] = [None] * len(held_out)
        for l2 in track(strengths, "Choosing the regularization of the head", unit="strengths"):
            found = [self.solve(l2, ~held, start, _ROUGH) for held, start in zip(held_out, starts, strict=True)]
            each = [self.loss_of(solution, held) for solution, held in zip(found, held_out, strict=True)]
            starts = [*found]
            losses[l2] = float(np.average(each, weights=[held.sum() for held in held_out]))
            best = min(losses, key=lambda strength: losses[strength])
            if list(losses).index(best) < len(losses) - _WORSE:
                break
        return best, losses[best]

    def kernel_and_bias(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the kernel `[D, C]` and the bias `[C]` for features that are not standardized."""
        kernel = self.axes @ parameters[:-1] / self.deviation.T
        return kernel, parameters[-1] - (self.mean @ kernel)[0]


def stratified_folds(num_examples: int, labels: np.ndarray | None = None) -> np.ndarray:
    """Return the number of the fold of each example, -1 for an example that is never held out.

    With class numbers `labels`, each class is spread over the folds, and the only example of a class is not held out.
    """
    order = np.random.default_rng(0).permutation(num_examples)
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    folds = np.empty(num_examples, np.int64)
    folds[order] = np.arange(num_examples) % FOLDS
    if labels is not None:
        folds[np.bincount(labels)[labels] == 1] = -1
    return folds
