"""Tasks as the training step sees them: their interface, classification, and loss and evaluation of a batch."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import keras
import numpy as np
from keras import ops

from keras_vit import optim


class Task(Protocol):
    """Learning task, as a pure function of the values of a batch: a tuple of arrays `[b, ...]`, a row per example."""

    def __call__(self, model: keras.Model, values: tuple, training: bool) -> tuple[Any, Any, Any]:
        """Return losses `[b]`, scores `[b]` and predictions `[b, ...]`, float32."""


class ClassificationTask:
    """Cross-entropy of the labels. The values are images `[b, h, w, c]` and labels `[b, classes]`."""

    def __init__(self, loss: str):
        self.loss = loss

    def __call__(self, model: keras.Model, values: tuple, training: bool) -> tuple:
        """Return losses, correct answers as 0 or 1, and logits."""
        images, labels = values
        logits = ops.cast(model(images, training=training), "float32")  # [b, classes]
        return optim.cross_entropy(logits, labels, self.loss), optim.is_correct(logits, labels), logits


class HiddenPatchesTask(Task, Protocol):
    """Task that hides patches and predicts them. It reads no labels."""

    def draw(self, seed: int, step: Any, batch_size: int) -> dict[str, Any]:
        """Return the entries of a global batch that say which patches are hidden."""

    def values(self, images: Any, batch: dict) -> tuple:
        """Return the values of a batch.

        Images `[b, h, w, c]` are in the range of the model. The batch has the entries of `draw`.
        """

    def show(
        self, batch: dict[str, np.ndarray], predictions: np.ndarray, preprocess: Callable
    ) -> dict[str, np.ndarray]:
        """Return images of an evaluation, uint8 `[n, h, w, c]` by name: input, what the model saw, reconstruction.

        `preprocess` maps images of the pipeline to the range of the model.
        """


def loss_and_score(
    task: Task, model: keras.Model, values: Any, global_batch_size: int, moving: Sequence[keras.Variable] = ()
) -> tuple[Any, Any, list[Any]]:
    """Return the part of some examples in the global batch's mean loss, mean score and moving statistics.

    The pass is in training mode, and within a `keras.StatelessScope`, which keeps the new values of `moving`. These are
    averaged over the parts of the batch.
    """
    losses, scores, _ = task(model, values, training=True)  # [b]
    share = ops.cast(ops.shape(losses)[0], "float32") / global_batch_size
    moved = [variable.value * share for variable in moving]  # in the scope, a value is the newest
    return ops.sum(losses) / global_batch_size, ops.sum(scores) / global_batch_size, moved


def evaluation(
    task: Task, model: keras.Model, inputs: Callable, confusion: bool = False
) -> Callable[[Iterable[tuple], dict], tuple[Any, Any, Any]]:
    """Return the evaluation of a batch whose examples with `valid` 0 do not count.

    It is a function of pairs of (variable, value to evaluate with) and the batch, which `inputs` maps to the values of
    the task. It returns the sums `[3]` of loss, score and examples; the confusion `[true classes, predicted classes]`,
    or `[0, 0]`; and the predictions `[b, ...]`.
    """

    def evaluate(weights, batch):
        values, valid = inputs(batch), ops.cast(batch["valid"], "float32")
        with keras.StatelessScope(weights, initialize_variables=False):
            losses, scores, predictions = task(model, values, training=False)
        confused = ops.zeros([0, 0], dtype="float32")
        if confusion:
            _, labels = values
            predicted = ops.one_hot(ops.argmax(predictions, axis=-1), predictions.shape[-1], dtype="float32")
            confused = ops.matmul(ops.transpose(labels * valid[:, None]), predicted)  # [classes, classes]
        sums = ops.stack([ops.sum(counted) for counted in (losses * valid, scores * valid, valid)])
        return sums, confused, predictions

    return evaluate
