"""TensorBoard events of a run, written without TensorBoard.

DIR/tensorboard/train/   loss, accuracy and more of training steps
DIR/tensorboard/eval/    results of evaluations; with the same tags, so that TensorBoard draws both on one chart
DIR/tensorboard/         the recipe as text, and some training images
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit import recipe as recipes
from keras_vit.training.errors import StorageError
from keras_vit.training.run_directory import TENSORBOARD

TRAIN, EVAL = "train", "eval"
_EVALUATION = "eval_"  # prefix of the names in metrics.jsonl
_SCALAR, _TENSOR, _BLOBS = 1, 2, 3  # tensorboard.DataClass


class ScalarWriter:
    """Writes metrics as events of the training or of the evaluation."""

    def __init__(self, directory: str):
        self.directory = os.path.join(directory, TENSORBOARD)
        self.writers: dict[str, Any] = {}

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Write the numbers of a line of `metrics.jsonl`. A line with a training loss is one of training."""
        kind = TRAIN if "loss" in values else EVAL
        if kind not in self.writers:
            self.writers[kind] = tf.summary.create_file_writer(os.path.join(self.directory, kind))
        with self.writers[kind].as_default():
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    tag = name.removeprefix(_EVALUATION)
                    tf.summary.write(tag, tf.constant(value, tf.float32), step, metadata=_metadata("scalars", _SCALAR))
        self.writers[kind].flush()

    def close(self) -> None:
        """End the files."""
        for writer in self.writers.values():
            writer.close()


def describe(directory: str, recipe: recipes.Recipe, images: np.ndarray | None = None) -> None:
    """Write the recipe as text, and training images `[n, h, w, channels]`, uint8 or float of any range."""
    text = f"```json\n{json.dumps(recipes.to_dict(recipe), indent=2)}\n```"
    with _events(os.path.join(directory, TENSORBOARD), step=0):
        tf.summary.write("recipe", tf.constant(text), metadata=_metadata("text", _TENSOR))
        if images is not None and len(images):
            _write_images("training images", images)


def write_images(directory: str, step: int, name: str, images: np.ndarray) -> None:
    """Write images `[n, h, w, channels]` of a step, uint8 or float of any range."""
    with _events(os.path.join(directory, TENSORBOARD, EVAL), step):
        _write_images(name, images)


@contextlib.contextmanager
def _events(directory: str, step: int) -> Iterator[None]:
    """Write the events of the block into a file of their own."""
    with writing(TENSORBOARD):
        writer = tf.summary.create_file_writer(directory)
        with contextlib.closing(writer), writer.as_default(step=step):
            yield


def _write_images(name: str, images: np.ndarray) -> None:
    height, width = images.shape[1:3]
    files = [tf.io.encode_png(image).numpy() for image in _as_bytes(images)]
    blobs = tf.constant([str(width).encode(), str(height).encode(), *files])
    tf.summary.write(name, blobs, metadata=_metadata("images", _BLOBS))


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Raise `StorageError` for a file that cannot be written."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        reason = str(error).split("\n", 1)[0]
        raise StorageError(f"Could not write {path}: {reason}. Free some space, then start again.") from error


def _as_bytes(images: np.ndarray) -> np.ndarray:
    """Return images as uint8 with 1 or 3 channels."""
    images = np.asarray(images)
    if images.dtype != np.uint8:
        low, high = images.min(), images.max()
        images = np.round((images - low) / max(high - low, 1e-6) * 255).astype(np.uint8)
    return images if images.shape[-1] in (1, 3) else images[..., :1]


def _metadata(plugin: str, data_class: int) -> Any:
    """Return the metadata that names the plugin of TensorBoard for a value."""
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = plugin
    metadata.data_class = data_class
    return metadata
