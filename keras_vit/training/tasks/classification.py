"""Classification of labeled images."""

import keras
from keras import ops

from keras_vit import optim


class ClassificationTask:
    """Cross-entropy of the labels. The values are images `[b, h, w, c]` and labels `[b, classes]`."""

    score = "accuracy"

    def __init__(self, loss: str):
        self.loss = loss

    def __call__(self, model: keras.Model, values: tuple, training: bool) -> tuple:
        """Return losses, correct answers as 0 or 1, and logits."""
        images, labels = values
        logits = ops.cast(model(images, training=training), "float32")  # [b, classes]
        return optim.cross_entropy(logits, labels, self.loss), optim.is_correct(logits, labels), logits
