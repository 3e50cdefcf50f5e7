"""Attention distance, in pixels."""

import functools
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.inspection import _inputs, attention
from keras_vit.layers import EncoderBlock
from keras_vit.util import checks
from keras_vit.util.progress import Progress


@functools.lru_cache(maxsize=1)  # for all layers and batches
def patch_distances(grid: tuple[int, int], patch: tuple[float, float]) -> np.ndarray:
    """Return the distance in pixels between the centers of each pair of patches, float32 `[h*w, h*w]`."""
    rows, columns = np.mgrid[: grid[0], : grid[1]].reshape(2, -1).astype(np.float64)
    y = (rows[:, None] - rows) * patch[0]
    x = (columns[:, None] - columns) * patch[1]
    return np.hypot(y, x).astype(np.float32)


def attention_distance(
    model: keras.Model, images: Any, batch_size: int = 8, normalize: bool = True, progress: bool = False
) -> np.ndarray:
    """Return the mean attention distance of each head in each layer, in pixels.

    The attention distance of a patch is the mean of its distances to all patches, weighted by attention. The result is
    averaged over patches and images. The class token and registers have no position and are ignored. The weights of
    each layer are reduced immediately, so memory does not grow with the number of images or layers.

    Args:
        model: A `VisionTransformer`, or a functional or sequential model with one inside.
        images: `[n, height, width, channels]`, or an iterable of images or batches, which is read one element at a
            time.
        batch_size: Number of images per call.
        normalize: Whether to divide the weights of the patches by their sum, so that the result is a weighted mean.
            If False, attention to the class token and registers counts as distance 0.
        progress: Whether to show a progress bar.

    Returns:
        float32 `[layers, heads]`.

    Raises:
        ValueError: If the model has no attention, or there are no images.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), figure 7 (right) and appendix D.7

    Example:
    >>> attention_distance(model, images).shape  # layers, heads
    (2, 2)
    """
    attention.require_attention(model)
    checks.positive_int("batch_size", batch_size)
    totals: list[np.ndarray] = []  # of each layer, [H]
    count = 0
    length = len(images) if hasattr(images, "__len__") else None
    with Progress("Attention distance", length, progress) as bar:
        for batch in _inputs.batches(images, batch_size):
            batch = _inputs.check_images(model, batch)
            sums: list[np.ndarray] = []

            def reduce(layer, weights, recorder, sums=sums, size=batch.shape[1:3]):
                if isinstance(layer, EncoderBlock):
                    grid = recorder.layout().grid
                    table = patch_distances(grid, (size[0] / grid[0], size[1] / grid[1]))
                    sums.append(_inputs.to_numpy(_summed_distance(weights, table, normalize)))

            attention.run(model, batch, reduce)
            totals = [a + b for a, b in zip(totals, sums, strict=True)] if totals else sums
            count += len(batch)
            bar.add(len(batch))
    if not count:
        raise ValueError("attention_distance needs at least one image. Received: none.")
    return (np.stack(totals) / count).astype(np.float32)


def _summed_distance(weights: Any, distances: np.ndarray, normalize: bool) -> Any:
    """Return the attention distance, averaged over queries and summed over images, `[H]`."""
    patches = distances.shape[0]
    weights = ops.cast(weights[:, :, -patches:, -patches:], "float32")  # [B, H, h*w, h*w]
    reach = ops.einsum("bhnm,nm->bhn", weights, distances)
    if normalize:
        reach = reach / ops.maximum(ops.sum(weights, axis=-1), 1e-12)
    return ops.sum(ops.mean(reach, axis=-1), axis=0)  # [H]
