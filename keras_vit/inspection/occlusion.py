"""Occlusion sensitivity: which parts of an image a prediction depends on."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vit.util import checks


def occlusion_sensitivity(
    predict: Callable[[np.ndarray], np.ndarray],
    image: Any,
    class_index: int | None = None,
    grid: int | tuple[int, int] = 8,
    fill: float = 0.0,
    batch_size: int = 16,
) -> np.ndarray:
    """Return how much the score of a class drops when each part of the image is covered.

    Only predictions are needed, so exported models and models without attention are also supported.

    Args:
        predict: A model, or a function from images `[B, height, width, channels]` to scores `[B, classes]`.
        image: Input of `predict` for one image, `[height, width, channels]`.
        class_index: Class number; None for the most likely class.
        grid: Number of rows and columns to divide the image into.
        fill: Value of covered pixels; 0 is gray for images in [-1, 1].
        batch_size: Number of images per call.

    Returns:
        float32 `[rows, columns]`: the drop of the score. A negative number means that covering the part raises the
        score.

    References:
        - [Visualizing and Understanding Convolutional Networks](https://arxiv.org/abs/1311.2901), section 4.2

    Example:
    >>> occlusion_sensitivity(model.predict_on_batch, images[0], grid=4).shape
    (4, 4)
    """
    if not callable(predict):
        raise ValueError(
            "`predict` must be a function from images to scores, such as model.predict_on_batch. Received: "
            f"predict={checks.described(predict)}."
        )
    if isinstance(predict, keras.layers.Layer):
        predict = functools.partial(predict, training=False)
    image = checks.numbers_of("image", image, "one image [height, width, channels]", ndim=3).astype(np.float32)
    scores = np.asarray(predict(image[None]))[0]
    class_index = int(scores.argmax() if class_index is None else checks.class_index(class_index, scores.shape[-1]))
    covered = covered_scores(predict, image, grid, fill, batch_size)
    return (scores[class_index] - covered[..., class_index]).astype(np.float32)


def covered_scores(
    predict: Callable[[np.ndarray], np.ndarray], image: np.ndarray, grid: int | tuple[int, int], fill: float, batch: int
) -> np.ndarray:
    """Return the scores of an image with each part covered separately, `[rows, columns, classes]`."""
    rows, columns = checks.size_pair("grid", grid)
    rows, columns = min(rows, image.shape[0]), min(columns, image.shape[1])
    y_edges = np.round(np.linspace(0, image.shape[0], rows + 1)).astype(int)
    x_edges = np.round(np.linspace(0, image.shape[1], columns + 1)).astype(int)
    parts = [(y, x) for y in range(rows) for x in range(columns)]
    found = []
    for start in range(0, len(parts), batch):
        copies = np.repeat(image[None], len(parts[start : start + batch]), axis=0)
        for copy, (y, x) in zip(copies, parts[start : start + batch], strict=True):
            copy[y_edges[y] : y_edges[y + 1], x_edges[x] : x_edges[x + 1]] = fill
        found.append(np.asarray(predict(copies)))
    return np.concatenate(found).reshape(rows, columns, -1)
