"""The teacher of a distillation: a model that another run trained."""

import os
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_vit.models.normalization import value_range
from keras_vit.models.variables import weights
from keras_vit.runs.run_directory import MODEL
from keras_vit.runs.trained_run import Run, load_run
from keras_vit.tasks import Task, parse_task
from keras_vit.util import checks, file_io


def load(task: Task, channels: int) -> None:
    """Load the teacher of a task, if the task has one, onto the devices.

    Raises:
        FileNotFoundError: If the run of the teacher is missing or not finished.
        ValueError: If the teacher was not trained on images and classes like those of the task.
    """
    if task.teacher is None:
        return
    run = load_run(task.teacher)
    if task.class_names:  # empty without data
        check_classes(run, task.class_names)
    task.teacher_model = Teacher(run, task.recipe.data.pp_train)
    if task.teacher_model.channels != channels:
        raise ValueError(
            f"The teacher must take images with {channels} channels, as data.pp_train returns them. Received: "
            f"{task.teacher_model.channels} channels, in {task.teacher}."
        )


def check_classes(run: Run, class_names: Sequence[str]) -> None:
    """Raise a ValueError if the model of a run does not classify into the classes of the data."""
    learned = parse_task(run.config["recipe"].get("task", "classification"))
    loss = run.config["recipe"].get("loss", "softmax")
    if learned.labels != "class" or loss != "softmax":
        raise ValueError(
            "The teacher must be a classifier that was trained with loss='softmax'. Received: "
            f"{run.path}, trained with task={str(learned)!r} and loss={loss!r}."
        )
    known = run.class_names
    if checks.class_numbers(class_names, known).tolist() != list(range(len(known))):
        raise ValueError(
            f"The teacher must have the {len(class_names)} classes of the data, in their order: "
            f"{list(class_names[:5])}. Received: {run.path}, with {len(known)} classes: {list(known[:5])}."
        )


def record(task: Task) -> dict[str, Any]:
    """Return the SHA-256 of the teacher's model for `config.json`; empty without a teacher."""
    path = os.path.join(task.teacher or "", MODEL)
    return {"teacher_sha256": file_io.sha256(path)} if task.teacher and os.path.exists(path) else {}


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
