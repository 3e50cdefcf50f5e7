"""Images as a model sees them, and the choice of those worth looking at."""

import dataclasses
import os
from collections.abc import Sequence

import numpy as np

from keras_vit.data import preprocess
from keras_vit.inference.outputs import is_correct


@dataclasses.dataclass(frozen=True)
class Example:
    """An image as the model sees it, before and after the normalization."""

    name: str
    pixels: np.ndarray  # uint8 [h, w, c], decoded, resized and cropped
    image: np.ndarray  # float32 [h, w, c], preprocessed
    label: np.ndarray | int | None = None  # class number or multi-hot row
    attention: np.ndarray | None = None  # [layers, h, w] from an exported model that returns it


def load(contents: bytes, name: str, pp: str, label: np.ndarray | int | None = None) -> Example:
    """Return an example from an encoded image, preprocessed by `pp`; folders are cut off its name."""
    import tensorflow as tf

    encoded = tf.constant(contents)
    pixels = np.asarray(preprocess.host_function(preprocess.split(pp)[0])({"image": encoded})["image"])
    image = np.asarray(preprocess.single_image(pp)(encoded))
    return Example(os.path.basename(name.rstrip("/")), pixels, image, label)


def choose(count: int, probabilities: np.ndarray | None, labels: np.ndarray | None, total: int) -> list[int]:
    """Return the indices of up to `count` of `total` images worth looking at.

    Up to half of them are mistakes, those of the highest probability first. The others are spread evenly over the
    images that are predicted correctly, because data sets are often sorted by class. Without probabilities or labels
    (class numbers or multi-hot rows) all are spread evenly.
    """
    if probabilities is None or labels is None:
        return spread(range(total), count)
    right = is_correct(probabilities.argmax(axis=-1), labels)
    mistakes = np.flatnonzero(~right)
    mistakes = mistakes[np.argsort(-probabilities[mistakes].max(axis=-1), kind="stable")].tolist()
    shown = mistakes[: max(count // 2, count - int(right.sum()))]
    return shown + spread(np.flatnonzero(right).tolist(), count - len(shown))


def spread(indices: Sequence[int], count: int) -> list[int]:
    """Return up to `count` of some indices, evenly spread."""
    if count < 1 or not len(indices):
        return []
    chosen = np.unique(np.linspace(0, len(indices) - 1, min(count, len(indices))).round().astype(int))
    return [indices[index] for index in chosen.tolist()]
