"""Losses for one-hot, multi-hot and soft labels, computed in float32."""

from typing import Any

from keras import ops


def smooth_labels(labels: Any, smoothing: float) -> Any:
    """Spread a fraction of each label evenly over all classes.

    Args:
        labels: `[..., classes]`, one-hot, multi-hot or soft.
        smoothing: The fraction, in [0, 1).

    Returns:
        Smoothed labels `[..., classes]`.

    References:
        - [Rethinking the Inception Architecture](https://arxiv.org/abs/1512.00567), section 7

    Example:
    >>> [round(float(value), 2) for value in smooth_labels(ops.one_hot([1], 4), 0.2)[0]]
    [0.05, 0.85, 0.05, 0.05]
    """
    if not smoothing:
        return labels
    return labels * (1.0 - smoothing) + smoothing / labels.shape[-1]


def cross_entropy(logits: Any, labels: Any, kind: str = "softmax") -> Any:
    """Return the cross-entropy of each example.

    Args:
        logits: `[..., classes]`, of any float dtype.
        labels: `[..., classes]`. Probabilities for `"softmax"`; a value in [0, 1] per class for `"sigmoid"`.
        kind: `"softmax"`, or `"sigmoid"` for the binary cross-entropy, summed over the classes.

    Returns:
        Float32 tensor `[...]`, in nats.

    Raises:
        ValueError: If `kind` is unknown.

    Example:
    >>> losses = cross_entropy(ops.array([[0.0, 0.0]]), ops.array([[1.0, 0.0]]))
    >>> round(float(losses[0]), 4)
    0.6931
    """
    logits, labels = ops.cast(logits, "float32"), ops.cast(labels, "float32")
    if kind == "softmax":
        return -ops.sum(labels * ops.log_softmax(logits, axis=-1), axis=-1)
    if kind == "sigmoid":
        # -y log(sigmoid(x)) - (1 - y) log(sigmoid(-x)), in a form that cannot overflow.
        return ops.sum(ops.relu(logits) - logits * labels + ops.log1p(ops.exp(-ops.abs(logits))), axis=-1)
    raise ValueError(f'The loss must be "softmax" or "sigmoid". Received: {kind!r}')


def is_correct(logits: Any, labels: Any) -> Any:
    """Return 1 for each example whose largest logit belongs to a true class, and 0 otherwise, float32 `[...]`.

    In soft labels, the classes with the largest value are the true classes.
    """
    predicted = ops.one_hot(ops.argmax(logits, axis=-1), logits.shape[-1], dtype="float32")
    labels = ops.cast(labels, "float32")
    share = ops.sum(predicted * labels, axis=-1)
    return ops.cast((share >= ops.max(labels, axis=-1)) & (share > 0), "float32")
