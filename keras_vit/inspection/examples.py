"""Images as people see them and as a model sees them, and the choice of those worth looking at."""

import dataclasses
import os
from collections.abc import Callable, Sequence

import numpy as np

from keras_vit.data import parse, preprocess
from keras_vit.inference.probabilities import is_correct


@dataclasses.dataclass(frozen=True)
class Example:
    """An image, as people and as the model see it.

    `box` is the part of `pixels` that `image` shows: (top, left, bottom, right), in pixels.
    """

    name: str
    pixels: np.ndarray  # uint8 [H, W, C], at its own resolution
    image: np.ndarray  # float32 [h, w, c], preprocessed
    box: tuple[float, float, float, float]
    label: np.ndarray | int | None = None  # class number or multi-hot row
    attention: np.ndarray | None = None  # [layers, h, w] from an exported model that returns it


def load(contents: bytes, name: str, pp: str, label: np.ndarray | int | None = None) -> Example:
    """Return an example from an encoded image, preprocessed by `pp`; folders are cut off its name."""
    import tensorflow as tf

    calls = [call.text for call in parse.parse(preprocess.split(pp)[0])]
    if not calls or not calls[0].startswith("decode"):
        calls.insert(0, "decode")
    encoded = tf.constant(contents)
    pixels = np.asarray(preprocess.host_function(calls[0])({"image": encoded})["image"])
    image = np.asarray(preprocess.single_image(pp)(encoded))
    box = visible_box(pixels.shape, preprocess.host_function("|".join(calls[1:])))
    return Example(os.path.basename(name.rstrip("/")), pixels, image, box, label)


def visible_box(shape: Sequence[int], geometry: Callable) -> tuple[float, float, float, float]:
    """Return (top, left, bottom, right) of the part of an image that preprocessing keeps, in pixels.

    It is found by preprocessing, after the decoding, an image of this shape whose values are the coordinates of its
    pixels.
    """
    import tensorflow as tf

    y, x = np.mgrid[: shape[0], : shape[1]].astype(np.float32) + 0.5
    coordinates = np.stack([y, x, np.zeros_like(y)], axis=-1)
    seen = np.asarray(geometry({"image": tf.constant(coordinates)})["image"], np.float32)
    edges = []
    for values, side in ((np.median(seen[..., 0], axis=1), shape[0]), (np.median(seen[..., 1], axis=0), shape[1])):
        size = len(values)
        inner = slice(size // 4, max(size - size // 4, size // 4 + 1))  # borders are padded, or repeat the last pixel
        centers = np.arange(size)[inner] + 0.5
        step = (values[inner][-1] - values[inner][0]) / (len(centers) - 1) if len(centers) > 1 else side / size
        first = values[inner].mean() - step * centers.mean()
        edges.append((float(np.clip(first, 0, side)), float(np.clip(first + step * size, 0, side))))
    (top, bottom), (left, right) = edges
    return top, left, bottom, right


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
