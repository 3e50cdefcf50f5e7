"""Distillation: a model learns to reproduce a teacher's class probabilities."""

import dataclasses
import os
from typing import Any, ClassVar

import keras
from keras import ops

from keras_vit import optim
from keras_vit.tasks.classification import Classification


@dataclasses.dataclass
class Distillation(Classification):
    """Classification that learns from the predictions of a trained model, the teacher.

    The loss is the divergence of the model's class probabilities from the teacher's, at a temperature. It is multiplied
    by the square of the temperature, so that the gradient keeps its scale. The teacher sees the same augmented images
    as the model. The labels are only used for the accuracy. An evaluation uses the labels, not the teacher.

    Attributes:
        teacher: Directory of a finished run with the same classes. Images are resized to the size of the teacher.
        temperature: Divisor of all logits before the softmax.

    References:
        - [Distilling the Knowledge in a Neural Network](https://arxiv.org/abs/1503.02531), section 2
        - [Knowledge distillation: A good teacher is patient and consistent](https://arxiv.org/abs/2106.05237)

    Example:
    >>> parse_task("distillation('runs/bit')").teacher
    'runs/bit'
    """

    teacher: str
    temperature: float = 1.0
    name: ClassVar[str] = "distillation"
    losses: ClassVar[tuple[str, ...]] = ("softmax",)
    linear_loss = ""  # learns from the teacher, not from the labels

    def __post_init__(self):
        super().__post_init__()
        self.teacher = os.fspath(self.teacher)
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive. Received: temperature={self.temperature}")

    def check(self, recipe: Any) -> None:
        super().check(recipe)
        if recipe.label_smoothing:
            raise ValueError(
                "Distillation learns the probabilities of the teacher, which requires label_smoothing=0. Received: "
                f"label_smoothing={recipe.label_smoothing}."
            )

    def __call__(self, model: keras.Model, values: tuple, training: bool) -> tuple[dict[str, Any], Any]:
        """Return losses, accuracies (0 or 1 per image) and logits."""
        metrics, logits = super().__call__(model, values, training)
        if training:
            metrics["loss"] = divergence(logits, self.teacher_model(values[0]), self.temperature)
        return metrics, logits


def divergence(logits: Any, targets: Any, temperature: float = 1.0) -> Any:
    """Return the Kullback-Leibler divergence between the probabilities of `targets` and of `logits`.

    `targets` and `logits` are logits `[..., classes]`. The result is float32 `[...]`, in nats, and is multiplied by the
    square of the temperature.
    """
    shares = ops.softmax(ops.cast(targets, "float32") / temperature, axis=-1)
    entropy = optim.cross_entropy(ops.cast(targets, "float32") / temperature, shares)
    return temperature**2 * (optim.cross_entropy(logits / temperature, shares) - entropy)
