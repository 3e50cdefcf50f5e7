"""Loss, accuracy and evaluation of a batch, as pure functions for every backend."""

from typing import Any

import keras
from keras import ops

from keras_vit import optim

METRICS = ("loss", "accuracy", "grad_norm", "learning_rate")


def loss_and_accuracy(
    model: keras.Model, images: Any, labels: Any, loss: str, global_batch_size: int
) -> tuple[Any, Any]:
    """Return the part of some examples in the mean loss and accuracy of the global batch, in training mode.

    Args:
        model: The model.
        images: `[b, h, w, c]`.
        labels: `[b, classes]`.
        loss: `"softmax"` or `"sigmoid"`.
        global_batch_size: Examples of the global batch.
    """
    logits = model(images, training=True)
    losses = optim.cross_entropy(logits, labels, loss)  # [b]
    correct = optim.is_correct(logits, labels)  # [b]
    return ops.sum(losses) / global_batch_size, ops.sum(correct) / global_batch_size


def evaluate(
    model: keras.Model, images: Any, labels: Any, mask: Any, loss: str, confusion: bool
) -> tuple[Any, Any, Any]:
    """Evaluate a batch whose examples with `mask` 0 do not count.

    Args:
        model: The model.
        images: `[b, h, w, c]`.
        labels: `[b, classes]`.
        mask: `[b]`.
        loss: `"softmax"` or `"sigmoid"`.
        confusion: Whether to count the confusion of classes.

    Returns:
        Sums `[3]` of loss, correct answers and examples; confusion `[true classes, predicted classes]`, or `[0, 0]`;
        and the logits `[b, classes]`.
    """
    logits = ops.cast(model(images, training=False), "float32")
    mask = ops.cast(mask, "float32")
    counted = [optim.cross_entropy(logits, labels, loss) * mask, optim.is_correct(logits, labels) * mask, mask]
    confused = ops.zeros([0, 0], dtype="float32")
    if confusion:
        predicted = ops.one_hot(ops.argmax(logits, axis=-1), logits.shape[-1], dtype="float32")  # [b, classes]
        confused = ops.matmul(ops.transpose(labels * mask[:, None]), predicted)  # [classes, classes]
    return ops.stack([ops.sum(values) for values in counted]), confused, logits
