"""Distillation: a model learns to reproduce a teacher's class probabilities."""

import os
from typing import Any

import keras
from keras import ops

from keras_vit import optim
from keras_vit import recipe as recipes
from keras_vit.models.normalization import value_range
from keras_vit.models.variables import weights
from keras_vit.runs.run_directory import MODEL, read_config
from keras_vit.runs.trained_run import Run, load_run
from keras_vit.training.tasks.classification import Classification
from keras_vit.util import checks, file_io


class Distillation(Classification):
    """Divergence of the model's class probabilities from the teacher's, at a temperature.

    The loss is multiplied by the square of the temperature, so that the gradient keeps its scale. The values are the
    same as for a classification. An evaluation uses the labels, not the teacher.

    References:
        - [Distilling the Knowledge in a Neural Network](https://arxiv.org/abs/1503.02531), section 2
        - [Knowledge distillation: A good teacher is patient and consistent](https://arxiv.org/abs/2106.05237)
    """

    def __init__(self, recipe: recipes.Recipe, source: Any = None, outputs: int = 0):
        super().__init__(recipe, source, outputs)
        if source is not None:
            check_teacher(self.arguments.teacher, list(source.class_names))

    def open(self, channels: int) -> None:
        """Open the teacher."""
        folder = self.arguments.teacher
        self.teacher = Teacher(load_run(folder), self.recipe.data.pp_train)
        if self.teacher.channels != channels:
            raise ValueError(
                f"The teacher must take images with {channels} channels, as data.pp_train gives them. Received: "
                f"{self.teacher.channels} channels, in {folder}."
            )

    def record(self) -> dict[str, Any]:
        """Return the SHA-256 of the teacher's model."""
        path = os.path.join(self.arguments.teacher, MODEL)
        return {"teacher_sha256": file_io.sha256(path)} if os.path.exists(path) else {}

    def __call__(self, model: keras.Model, values: tuple, training: bool) -> tuple[dict[str, Any], Any]:
        """Return losses, accuracies (0 or 1 per image) and logits."""
        metrics, logits = super().__call__(model, values, training)
        if training:
            metrics["loss"] = divergence(logits, self.teacher(values[0]), self.arguments.temperature)
        return metrics, logits


def divergence(logits: Any, targets: Any, temperature: float = 1.0) -> Any:
    """Return the Kullback-Leibler divergence between the probabilities of `targets` and of `logits`.

    `targets` and `logits` are logits `[..., classes]`. The result is float32 `[...]`, in nats, and is multiplied by the
    square of the temperature.
    """
    shares = ops.softmax(ops.cast(targets, "float32") / temperature, axis=-1)
    entropy = optim.cross_entropy(ops.cast(targets, "float32") / temperature, shares)
    return temperature**2 * (optim.cross_entropy(logits / temperature, shares) - entropy)


class Teacher:
    """Trained model, with frozen weights, that classifies the images of a student.

    `preprocess` is the preprocessing of the student's images.
    """

    def __init__(self, run: Run, preprocess: str):
        from keras_vit.data import preprocess as operations  # needs TensorFlow, which the step does not import

        self._model = run.model
        self._model.trainable = False
        self.weights = weights(self._model)
        _, *self._size, self.channels = self._model.input_shape
        low, high = value_range(operations.device_function(preprocess), self.channels)
        own_low, own_high = value_range(operations.device_function(run.preprocess), self.channels)
        self._scale = (own_high - own_low) / (high - low)
        self._offset = own_low - low * self._scale

    def __call__(self, images: Any) -> Any:
        """Return logits, float32 `[b, classes]`, for images `[b, h, w, c]` in the student's range."""
        images = ops.cast(images, "float32") * self._scale + self._offset
        size = tuple(images.shape[1:3])
        if size != tuple(self._size):
            smaller = any(side > own for side, own in zip(size, self._size, strict=True))
            images = ops.image.resize(images, self._size, antialias=smaller, data_format="channels_last")
        return ops.cast(self._model(images, training=False), "float32")


def check_teacher(teacher: str, class_names: list[str]) -> None:
    """Check that a teacher was trained on the classes of the data."""
    config = read_config(teacher)
    learned = recipes.parse_task(config["recipe"].get("task", "classification"))
    names, output = config["data"]["class_names"], config["output"]
    if learned.labels != "class" or output != "softmax":
        raise ValueError(
            "The teacher must be a classifier that was trained with loss='softmax'. Received: "
            f"{teacher}, trained with task={str(learned)!r} and loss={output!r}."
        )
    if checks.class_numbers(class_names, names).tolist() != list(range(len(names))):
        raise ValueError(
            f"The teacher must have the {len(class_names)} classes of the data, in their order: {class_names[:5]}. "
            f"Received: {teacher}, with {len(names)} classes: {names[:5]}."
        )
