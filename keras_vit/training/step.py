"""Loss, score and evaluation of a batch, as pure functions for every backend."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.training.tasks import Task

METRICS = ("loss", "score", "grad_norm", "learning_rate")


def check_rows(images: np.ndarray, replicas: int) -> None:
    """Refuse images that do not divide among the replicas of this process."""
    if len(images) % replicas:
        raise ValueError(f"The images must divide among {replicas} replicas. Received: {len(images)} images.")


def loss_and_score(
    task: Task, model: keras.Model, values: Any, global_batch_size: int, moving: Sequence[keras.Variable] = ()
) -> tuple[Any, Any, list[Any]]:
    """Return the part of some examples in the global batch's mean loss, mean score and moving statistics.

    The pass is in training mode, and within a `keras.StatelessScope`, which keeps the new values of `moving`. The pass
    changes the variables `moving`. Their new values are averaged over the parts of the batch.
    """
    losses, scores, _ = task(model, values, training=True)  # [b]
    share = ops.cast(ops.shape(losses)[0], "float32") / global_batch_size
    moved = [variable.value * share for variable in moving]  # in the scope, a value is the newest
    return ops.sum(losses) / global_batch_size, ops.sum(scores) / global_batch_size, moved


def evaluate(task: Task, model: keras.Model, values: Any, mask: Any, confusion: bool) -> tuple[Any, Any, Any]:
    """Evaluate a batch whose examples with `mask` 0 do not count.

    Returns the sums `[3]` of loss, score and examples; the confusion `[true classes, predicted classes]`, or `[0, 0]`;
    and the predictions `[b, ...]`.
    """
    losses, scores, predictions = task(model, values, training=False)
    mask = ops.cast(mask, "float32")
    counted = [losses * mask, scores * mask, mask]
    confused = ops.zeros([0, 0], dtype="float32")
    if confusion:
        _, labels = values
        predicted = ops.one_hot(ops.argmax(predictions, axis=-1), predictions.shape[-1], dtype="float32")
        confused = ops.matmul(ops.transpose(labels * mask[:, None]), predicted)  # [classes, classes]
    return ops.stack([ops.sum(values) for values in counted]), confused, predictions
