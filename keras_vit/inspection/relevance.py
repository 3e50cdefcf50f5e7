"""Relevance of each patch for a class: attention weighted by the gradient of the class score."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import _checks
from keras_vit.inspection import _gradients, _layer_walk, attention
from keras_vit.layers import MAPHead, kernels
from keras_vit.layers.attention import attention as plain_attention


def gradient_attention(
    model: keras.Model, images: Any, class_index: int | Sequence[int] | None = None, batch_size: int = 16
) -> np.ndarray:
    """Return how much each patch speaks for a class.

    In each layer the attention weights are multiplied with the gradient of the class's score with respect to them;
    what is positive is averaged over the heads, and relevance is passed on from layer to layer: `R += A R`, starting
    from the identity.

    Args:
        model: A `VisionTransformer` with its head, or a functional or sequential model with one inside.
        images: `[B, height, width, channels]`, as the model takes them.
        class_index: The class, one for all images or one each; None for each image's likeliest.
        batch_size: How many images run at a time.

    Returns:
        float32 `[B, h, w]`, not negative: the output's relevance to each patch.

    Raises:
        ValueError: If the model has no attention or its output no classes, or the class does not exist.
        NotImplementedError: On a backend without gradients of functions.

    References:
        - [Generic Attention-model Explainability](https://arxiv.org/abs/2103.15679), equations 5, 6 and 8

    Example:
    >>> gradient_attention(model, images, class_index=3).shape
    (4, 4, 4)
    """
    attention.require_attention(model)
    images = _layer_walk.check_images(model, images)
    classes = None if class_index is None else np.broadcast_to(np.asarray(class_index, np.int32), (len(images),))
    parts, start = [], 0
    for batch in _layer_walk.batches(images, _checks.positive_int("batch_size", batch_size)):
        chosen = None if classes is None else classes[start : start + len(batch)]
        parts.append(_relevance(model, batch, chosen))
        start += len(batch)
    return np.concatenate(parts)


def _relevance(model: keras.Model, images: np.ndarray, class_index: np.ndarray | None) -> np.ndarray:
    layers, maps = [], []

    def keep(layer, weights, _):
        layers.append(layer)
        maps.append(weights)

    output, recorder = attention.run(model, images, keep)
    logits = _layer_walk.to_numpy(output)
    if logits.ndim != 2:
        raise ValueError(
            f"gradient_attention needs a model that ends in classes, [B, classes]. Received: outputs of shape "
            f"{logits.shape}. Build the model with its head."
        )
    if class_index is None:
        class_index = logits.argmax(axis=-1)
    if class_index.min() < 0 or class_index.max() >= logits.shape[1]:
        raise ValueError(
            f"`class_index` must be in 0..{logits.shape[1] - 1}. Received: class_index={class_index.tolist()}."
        )
    one_hot = ops.one_hot(class_index, logits.shape[1])  # [B, classes]

    def score(offsets):
        return ops.sum(ops.cast(_run_with_offsets(model, images, offsets), "float32") * one_hot)

    slopes = _gradients.gradients(score, [ops.zeros_like(weights) for weights in maps])
    own = np.eye(recorder.length or 0, dtype=np.float32)  # each token's relevance to itself
    relevance, probe = own, None
    for layer, weights, slope in zip(layers, maps, slopes, strict=True):
        # [B, N, N], or [B, 1, N] for attention pooling
        positive = np.maximum(_layer_walk.to_numpy(weights) * _layer_walk.to_numpy(slope), 0.0).mean(axis=1)
        if isinstance(layer, MAPHead):
            probe = positive[:, 0]  # [B, N]
        else:
            relevance = relevance + positive @ relevance  # [B, N, N]
    layout = recorder.layout()
    if probe is None:
        relevance = relevance - own
    return layout.to_grid(layout.output_row(relevance, probe)).astype(np.float32)


def _run_with_offsets(model: keras.Model, images: np.ndarray, offsets: list[Any]) -> Any:
    """Return a model's scores when an offset, here zero, is added to each layer's attention weights."""
    remaining = iter(offsets)

    def attention_with_offset(query, key, value, bias=None, dropout=None, chunk_size=None):
        offset = next(remaining)
        return plain_attention(query, key, value, bias, lambda weights: weights + offset)

    def call(layer, *args, **kwargs):
        if isinstance(layer, keras.layers.Softmax) or (
            isinstance(layer, keras.layers.Activation)
            and layer.activation in (keras.activations.softmax, keras.activations.sigmoid)
        ):
            return args[0]  # the score is what comes before: a probability near 1 has no gradient left
        return layer(*args, **kwargs)

    with kernels.replace(attention=attention_with_offset):
        return _layer_walk.walk(model, images, call)
