"""Images of a run that trains without labels: input, what the model saw of it, and its reconstruction."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit import recipe as recipes
from keras_vit.data import preprocess
from keras_vit.training import tasks
from keras_vit.training.errors import StorageError
from keras_vit.training.run_directory import TENSORBOARD
from keras_vit.training.validation import Validation

_SHOWN = 8  # images in TensorBoard


class Reconstructions:
    """Evaluator that writes images for TensorBoard after each validation.

    Args:
        recipe: Recipe of a task that hides patches.
        validation: The validation, which ran just before.
        directory: The run directory; None writes nothing.
    """

    def __init__(self, recipe: recipes.Recipe, validation: Validation, directory: str | None):
        self.recipe, self.validation, self.directory = recipe, validation, directory

    def intervals(self) -> list[int]:
        """Return no intervals: it runs when the validation does."""
        return []

    def due(self, step: int) -> bool:
        """Return whether it runs after a step: whenever the validation does."""
        return self.validation.due(step)

    def __call__(self, step: int) -> Iterator[dict[str, Any]]:
        """Write the images. There are no metrics to yield."""
        if self.directory is not None:
            images = list(self.images().values())
            strips = np.concatenate(images, axis=2)[:_SHOWN]  # [n, h, 3 w, c]
            write_images(os.path.join(self.directory, TENSORBOARD), step, "reconstruction", strips)
        return iter(())

    def images(self) -> dict[str, np.ndarray]:
        """Return images of the last validation, uint8 `[n, h, w, c]` by name."""
        examples = dict(self.validation.examples or {})
        predictions = examples.pop("predictions")
        task: Any = tasks.create(self.recipe)
        return task.show(examples, predictions, preprocess.device_function(self.recipe.data.pp_eval))


def write_images(directory: str, step: int, name: str, images: np.ndarray) -> None:
    """Write images for TensorBoard, which need not be installed.

    Args:
        directory: Directory of the events.
        step: Step of the run.
        name: Name of the images.
        images: uint8 `[n, height, width, 1 or 3]`.

    Raises:
        StorageError: If they cannot be written.
    """
    _, height, width, channels = images.shape
    shown = images if channels in (1, 3) else images[..., :1]
    encoded = [tf.io.encode_png(image) for image in shown]
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = "images"
    metadata.data_class = 3  # DATA_CLASS_BLOB_SEQUENCE
    try:
        with contextlib.closing(tf.summary.create_file_writer(directory)) as writer, writer.as_default():
            tf.summary.write(name, tf.stack([str(width), str(height), *encoded]), step, metadata=metadata)
    except (OSError, tf.errors.OpError) as error:
        raise StorageError(f"Could not write {directory}: {str(error).splitlines()[0]}. Free some space.") from error
