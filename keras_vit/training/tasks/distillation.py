"""Distillation: a model learns to classify images as a teacher does."""

import os
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit import _checks, _io, optim
from keras_vit import recipe as recipes
from keras_vit.models.normalization import value_range
from keras_vit.training.run_directory import MODEL, Run, load_run, read_config
from keras_vit.training.state import weights
from keras_vit.training.tasks.task import ClassificationTask


class DistillationTask(ClassificationTask):
    """Divergence of the model's class probabilities from the teacher's, at a temperature.

    The values are those of `ClassificationTask`. An evaluation is that of the labels, without the teacher.

    Args:
        teacher: Function from images `[b, h, w, c]` in the range of the model to logits `[b, classes]`; None for
            evaluations only.
        temperature: Divisor of all logits before the softmax. The loss is multiplied by its square, so that the
            gradient keeps its size.

    References:
        - [Distilling the Knowledge in a Neural Network](https://arxiv.org/abs/1503.02531), section 2
        - [Knowledge distillation: A good teacher is patient and consistent](https://arxiv.org/abs/2106.05237)
    """

    def __init__(self, teacher: "Teacher | None", temperature: float = 1.0):
        super().__init__("softmax")
        self.teacher, self.temperature = teacher, temperature

    def __call__(self, model: keras.Model, values: tuple, training: bool) -> tuple:
        """Return losses, correct answers as 0 or 1, and logits."""
        losses, correct, logits = super().__call__(model, values, training)
        if training:
            assert self.teacher is not None
            losses = divergence(logits, self.teacher(values[0]), self.temperature)
        return losses, correct, logits


def divergence(logits: Any, targets: Any, temperature: float = 1.0) -> Any:
    """Return the Kullback-Leibler divergence of the probabilities of logits from those of targets.

    Logits are `[..., classes]`, the result `[...]`, float32, in nats. The square of the temperature multiplies it.
    """
    shares = ops.softmax(ops.cast(targets, "float32") / temperature, axis=-1)
    entropy = optim.cross_entropy(ops.cast(targets, "float32") / temperature, shares)
    return temperature**2 * (optim.cross_entropy(logits / temperature, shares) - entropy)


class Teacher:
    """Trained model that classifies the images of a student. Its weights do not change.

    `preprocess` prepares the student's images.
    """

    def __init__(self, run: Run, preprocess: str):
        from keras_vit.data import preprocess as operations  # needs TensorFlow, which the step does not

        self._model = run.model
        self._model.trainable = False
        self.weights = weights(self._model)
        _, *self._size, self.channels = self._model.input_shape
        low, high = value_range(operations.device_function(preprocess), self.channels)
        own_low, own_high = value_range(operations.device_function(run.preprocess), self.channels)
        self._scale = (own_high - own_low) / (high - low)
        self._offset = own_low - low * self._scale

    def __call__(self, images: Any) -> Any:
        """Return logits, float32 `[b, classes]`, for images `[b, h, w, c]` in the range of the student."""
        images = ops.cast(images, "float32") * self._scale + self._offset
        size = tuple(images.shape[1:3])
        if size != tuple(self._size):
            smaller = size > tuple(self._size)
            images = ops.image.resize(images, self._size, antialias=smaller, data_format="channels_last")
        return ops.cast(self._model(images, training=False), "float32")


def open_teacher(recipe: recipes.Recipe, channels: int) -> Teacher | None:
    """Return the teacher of a recipe; None for a task without one."""
    task = recipe.task
    if not isinstance(task, recipes.Distillation):
        return None
    teacher = Teacher(load_run(task.teacher), recipe.data.pp_train)
    if teacher.channels != channels:
        raise ValueError(
            f"The teacher must take images with {channels} channels, as data.pp_train gives them. Received: "
            f"{teacher.channels} channels, in {task.teacher}."
        )
    return teacher


def teacher_record(recipe: recipes.Recipe) -> dict[str, str]:
    """Return the SHA-256 of the teacher's model, for the record of a run; empty without a teacher."""
    path = os.path.join(recipe.task.teacher, MODEL) if isinstance(recipe.task, recipes.Distillation) else ""
    return {"teacher_sha256": _io.sha256(path)} if os.path.exists(path) else {}


def check_teacher(recipe: recipes.Recipe, class_names: Sequence[str]) -> None:
    """Check that the teacher of a recipe, if it has one, distinguishes the classes of the data."""
    task = recipe.task
    if not isinstance(task, recipes.Distillation):
        return
    config, expected = read_config(task.teacher), list(class_names)
    learned = recipes.parse_task(config["recipe"].get("task", "classification"))
    names, output = config["data"]["class_names"], config["output"]
    if not isinstance(learned, recipes.Classification) or output != "softmax":
        raise ValueError(
            "The teacher must be a classifier that was trained with loss='softmax'. Received: "
            f"{task.teacher}, trained with task={str(learned)!r} and loss={output!r}."
        )
    if _checks.class_numbers(expected, names).tolist() != list(range(len(names))):
        raise ValueError(
            f"The teacher must have the {len(expected)} classes of the data, in their order: {expected[:5]}. Received: "
            f"{task.teacher}, with {len(names)} classes: {names[:5]}."
        )
