"""Example images of reports: their preprocessing and selection."""

import dataclasses
import os
from collections.abc import Sequence

import numpy as np

from keras_vit.data import masks, preprocess


@dataclasses.dataclass(frozen=True)
class Example:
    """An image after cropping and resizing, both before and after normalization."""

    name: str
    pixels: np.ndarray  # uint8 [h, w, c], decoded, resized and cropped
    image: np.ndarray  # float32 [h, w, c], preprocessed
    label: np.ndarray | int | None = None  # class number or multi-hot row
    attention: np.ndarray | None = None  # [layers, h, w] if an exported model returns it
    mask: np.ndarray | None = None  # true class of each pixel, integers [h, w]
    predicted: np.ndarray | None = None  # predicted class of each pixel, integers [h, w]
    ignore: int = 255  # class of the mask that is ignored; 255 for no class
    values: Sequence[tuple[str, str]] = ()  # predicted values: name and formatted number


def load(contents: bytes, name: str, pp: str, label: np.ndarray | int | None = None) -> Example:
    """Decode and preprocess an image with `pp`. The example's name is the base name of `name`."""
    import tensorflow as tf

    encoded = tf.constant(contents)
    pixels = np.asarray(preprocess.host_function(preprocess.split(pp)[0])({"image": encoded})["image"])
    image = np.asarray(preprocess.single_image(pp)(encoded))
    return Example(os.path.basename(name.rstrip("/")), pixels, image, label)


def mask_as_seen(contents: bytes, mask: np.ndarray, pp: str, num_classes: int) -> np.ndarray:
    """Return a mask `[h, w]`, resized and cropped like its image. Ignored pixels are -1."""
    import tensorflow as tf

    function = masks.processed(preprocess.host_function(preprocess.split(pp)[0]), num_classes)
    found = np.asarray(function({"image": tf.constant(contents), "mask": tf.constant(mask, tf.int32)})["mask"])
    return np.where(found < num_classes, found, -1)


def choose(count: int, right: np.ndarray | None, confidence: np.ndarray | None, total: int) -> list[int]:
    """Return the indices of up to `count` of `total` images to show.

    Up to half of the images are mistakes, the most confident first. If there are too few correct predictions, more
    mistakes are shown. The remaining images are spread evenly over the correct predictions, because data sets are often
    sorted by class. If `right` or `confidence` is None, the images are spread evenly over all `total` images.
    """
    if right is None or confidence is None:
        return spread(range(total), count)
    mistakes = np.flatnonzero(~right)
    mistakes = mistakes[np.argsort(-confidence[mistakes], kind="stable")].tolist()
    shown = mistakes[: max(count // 2, count - int(right.sum()))]
    return shown + spread(np.flatnonzero(right).tolist(), count - len(shown))


def spread(indices: Sequence[int], count: int) -> list[int]:
    """Return up to `count` of the indices, evenly spaced."""
    if count < 1 or not len(indices):
        return []
    chosen = np.unique(np.linspace(0, len(indices) - 1, min(count, len(indices))).round().astype(int))
    return [indices[index] for index in chosen.tolist()]
