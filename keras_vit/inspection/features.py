"""Features of every block and their similarity between two models."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.inspection import _inputs
from keras_vit.models import layer_walk
from keras_vit.util import checks

_SMALLEST_BATCH = 4  # the unbiased estimate is undefined for smaller batches


def layer_features(
    model: keras.Model, images: Any, layers: str | Sequence[str] | None = None, batch_size: int = 32
) -> dict[str, np.ndarray]:
    """Return the outputs of blocks by name.

    Args:
        model: Any functional or sequential model.
        images: Inputs of the model, `[B, height, width, channels]`.
        layers: Name or names of layers, such as `["encoder_norm", "pre_logits"]`. None for all encoder blocks and
            ResNet stages.
        batch_size: Number of images per call. The result contains the features of all images.

    Returns:
        Dictionary from layer names to float32 arrays, in execution order: `[B, N, D]` for encoder blocks,
        `[B, h, w, C]` for ResNet stages.

    Raises:
        ValueError: If the model has no layer with a requested name.

    Example:
    >>> features = layer_features(model, images, ["encoderblock_1", "encoder_norm"])
    >>> {name: array.shape for name, array in features.items()}
    {'encoderblock_1': (4, 17, 32), 'encoder_norm': (4, 17, 32)}
    """
    images = _inputs.check_images(model, images)
    layers = [layers] if isinstance(layers, str) else layers
    parts: dict[str, list[np.ndarray]] = {}
    for batch in _inputs.batches(images, checks.positive_int("batch_size", batch_size)):
        for name, output in _features(model, batch, layers).items():
            parts.setdefault(name, []).append(output)
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def _features(model: keras.Model, images: np.ndarray, layers: Sequence[str] | None) -> dict[str, np.ndarray]:
    return {name: _inputs.to_numpy(x) for name, x in layer_walk.outputs(model, images, layers).items()}


def cka(x: np.ndarray, y: np.ndarray, unbiased: bool = False) -> float:
    """Return the linear centered kernel alignment (CKA) of two sets of features of the same examples.

    CKA is 1 for features that differ only by rotation and scale, and near 0 for unrelated features.

    Args:
        x: `[n, ...]`, flattened to `[n, features]`.
        y: `[n, ...]`, with any number of features.
        unbiased: Whether to use the unbiased estimate. The default estimate grows if n is below the number of features.
            The unbiased estimate does not grow, but may be slightly negative.

    Raises:
        ValueError: If `x` and `y` have different numbers of examples, or too few.

    References:
        - [Similarity of Neural Network Representations Revisited](https://arxiv.org/abs/1905.00414)

    Example:
    >>> features = np.random.default_rng(0).normal(size=(16, 8))
    >>> round(float(cka(features, 3.0 * features)), 4)
    1.0
    """
    expected = "an array of features [n, ...]"
    k, other = (_gram(checks.numbers_of(name, value, expected)) for name, value in (("x", x), ("y", y)))
    if len(k) != len(other) or len(k) < (_SMALLEST_BATCH if unbiased else 2):
        raise ValueError(
            f"CKA compares features of the same examples, at least {_SMALLEST_BATCH if unbiased else 2}. "
            f"Received: {len(k)} and {len(other)} examples."
        )
    hsic = _unbiased_hsic if unbiased else _hsic
    return _ratio(hsic(k, other), hsic(k, k), hsic(other, other))


class LayerSimilarity(NamedTuple):
    """Similarity of the layers of two models.

    Attributes:
        values: CKA of each pair, float32 `[layers, other layers]`.
        layers: Names of the first model's layers.
        other_layers: Names of the second model's layers.

    Example:
    >>> similarity = layer_similarity(model, model, images)
    >>> similarity.layers
    ('encoderblock_0', 'encoderblock_1')
    """

    values: np.ndarray
    layers: tuple[str, ...]
    other_layers: tuple[str, ...]


def layer_similarity(
    model: keras.Model, other: keras.Model, images: Any, other_images: Any = None, batch_size: int = 64
) -> LayerSimilarity:
    """Return the CKA of each pair of blocks of two models.

    The CKA is estimated batch by batch, so memory does not grow with the number of images.

    Args:
        model: Any functional or sequential model with blocks.
        other: The second model. It may be the same as `model`.
        images: Inputs of `model`: an array or an iterable of batches.
        other_images: The same images, preprocessed for `other`. None if both models take the same inputs.
        batch_size: Number of images that are compared with each other, at least 4. Larger batches give a less noisy
            estimate. Larger batches of an iterable are split, and batches of fewer than 4 images are ignored.

    Raises:
        ValueError: If every batch has fewer than 4 images, or `images` and `other_images` differ in number.

    References:
        - [Do Wide and Deep Networks Learn the Same Things?](https://arxiv.org/abs/2010.15327), equations 2 and 3

    Example:
    >>> similarity = layer_similarity(model, model, images)
    >>> similarity.values.shape, round(float(similarity.values[0, 0]), 3)
    ((2, 2), 1.0)
    """
    checks.positive_int("batch_size", batch_size, minimum=_SMALLEST_BATCH)
    first = _inputs.batches(images, batch_size)
    pairs: Iterator[tuple[np.ndarray, np.ndarray]] = (
        ((batch, batch) for batch in first)
        if other_images is None
        else zip(first, _inputs.batches(other_images, batch_size), strict=True)
    )
    totals: list[Any] = []
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    for batch, other_batch in pairs:
        if len(batch) != len(other_batch):
            raise ValueError(
                f"`images` and `other_images` must contain the same images in the same batches. Received: "
                f"batches of {len(batch)} and {len(other_batch)}."
            )
        if len(batch) < _SMALLEST_BATCH:
            continue
        features = _features(model, _inputs.check_images(model, batch), None)
        same = other is model and other_images is None
        others = features if same else _features(other, _inputs.check_images(other, other_batch, "other"), None)
        names = tuple(features), tuple(others)
        grams, other_grams = ([_gram(value) for value in found.values()] for found in (features, others))
        sums = [
            np.array([[_unbiased_hsic(a, b) for b in other_grams] for a in grams]),
            np.array([_unbiased_hsic(a, a) for a in grams])[:, None],
            np.array([_unbiased_hsic(b, b) for b in other_grams])[None, :],
        ]
        totals = [a + b for a, b in zip(totals, sums, strict=True)] if totals else sums
    if not totals:
        raise ValueError(f"layer_similarity needs at least {_SMALLEST_BATCH} images in a batch. Received: fewer.")
    return LayerSimilarity(_ratio(*totals).astype(np.float32), *names)


def _gram(features: np.ndarray) -> np.ndarray:
    """Return the inner products of all pairs of examples, float64 `[n, n]`."""
    features = np.atleast_1d(np.asarray(features, np.float64))
    flat = features.reshape(len(features), -1)
    flat = flat - flat.mean(axis=0)  # leaves the CKA unchanged, and keeps precision if the means are large
    return flat @ flat.T


def _hsic(k: np.ndarray, other: np.ndarray) -> float:
    center = np.eye(len(k)) - 1.0 / len(k)
    return float(np.sum((center @ k @ center) * other))


def _unbiased_hsic(k: np.ndarray, other: np.ndarray) -> float:
    n = len(k)
    k, other = k - np.diag(np.diag(k)), other - np.diag(np.diag(other))
    value = np.sum(k * other) + k.sum() * other.sum() / ((n - 1) * (n - 2)) - 2 * k.sum(0) @ other.sum(0) / (n - 2)
    return float(value / (n * (n - 3)))


def _ratio(cross, own, other):
    return cross / np.maximum(np.sqrt(np.maximum(own * other, 0.0)), 1e-30)
