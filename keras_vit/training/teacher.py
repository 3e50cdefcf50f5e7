"""The teacher of a distillation: a model that another run trained."""

import os
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_vit.models.normalization import value_range
from keras_vit.models.variables import weights
from keras_vit.runs.run_directory import MODEL, Run, load_run, read_config
from keras_vit.tasks import Task, parse_task
from keras_vit.util import checks, file_io


def load(task: Task, channels: int) -> None:
    """Load the teacher of a task, if the task has one, onto the devices."""
    if task.teacher is None:
        return
    task.teacher_model = Teacher(load_run(task.teacher), task.recipe.data.pp_train)
    if task.teacher_model.channels != channels:
        raise ValueError(
            f"The teacher must take images with {channels} channels, as data.pp_train gives them. Received: "
            f"{task.teacher_model.channels} channels, in {task.teacher}."
        )


def check(task: Task, class_names: Sequence[str]) -> None:
    """Check that the teacher of a task, if the task has one, was trained on the classes of the data."""
    if task.teacher is None:
        return
    config = read_config(task.teacher)
    learned = parse_task(config["recipe"].get("task", "classification"))
    names, output = config["data"]["class_names"], config["output"]
    if learned.labels != "class" or output != "softmax":
        raise ValueError(
            "The teacher must be a classifier that was trained with loss='softmax'. Received: "
            f"{task.teacher}, trained with task={str(learned)!r} and loss={output!r}."
        )
    if checks.class_numbers(class_names, names).tolist() != list(range(len(names))):
        raise ValueError(
            f"The teacher must have the {len(class_names)} classes of the data, in their order: "
            f"{list(class_names[:5])}. Received: {task.teacher}, with {len(names)} classes: {names[:5]}."
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
