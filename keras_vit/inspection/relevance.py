"""Relevance of each patch for a class: attention weighted by the gradient of the class's score."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.inspection import _inputs, attention
from keras_vit.layers import EncoderBlock, MAPHead
from keras_vit.models import layer_walk
from keras_vit.models.base import ConfiguredModel
from keras_vit.models.predictions import activation_of, endings
from keras_vit.outputs import CLASSIFICATION
from keras_vit.util import checks


def gradient_attention(
    model: keras.Model, images: Any, class_index: int | Sequence[int] | None = None, batch_size: int = 16
) -> np.ndarray:
    """Return the relevance of each patch for a class.

    In each layer, the attention weights are multiplied by the gradient of the class's score with respect to the
    weights. Negative products are set to zero, and the mean over the heads is `A`. The relevance `R` starts as the
    identity and is updated in each layer: `R += A R`.

    Args:
        model: A `VisionTransformer` with its head, or a functional or sequential model with one inside.
        images: Inputs of the model, `[B, height, width, channels]`.
        class_index: Class number, or a list with one number per image. None for the most likely class of each image.
        batch_size: Number of images per call.

    Returns:
        float32 `[B, h, w]`, nonnegative: the relevance of each patch.

    Raises:
        ValueError: If the model has no attention or no classes, or `class_index` is out of range.
        NotImplementedError: On backends other than TensorFlow and JAX.

    References:
        - [Generic Attention-model Explainability](https://arxiv.org/abs/2103.15679), equations 5, 6 and 8

    Example:
    >>> gradient_attention(model, images, class_index=3).shape
    (4, 4, 4)
    """
    attention.require_attention(model)
    images = _inputs.check_images(model, images)
    if isinstance(model, ConfiguredModel) and not model.config.include_top:
        raise ValueError(
            "gradient_attention needs a model with class outputs. Received: include_top=False. Build it with a head."
        )
    parts, start = [], 0
    for batch in _inputs.batches(images, checks.positive_int("batch_size", batch_size)):
        parts.append(_relevance(model, batch, class_index, slice(start, start + len(batch)), len(images)))
        start += len(batch)
    return np.concatenate(parts)


def _relevance(
    model: keras.Model, images: np.ndarray, class_index: int | Sequence[int] | None, part: slice, total: int
) -> np.ndarray:
    layers, maps = [], []

    def keep(layer, weights, _):
        layers.append(layer)
        maps.append(weights)

    output, recorder = attention.run(model, images, keep)
    logits = _inputs.to_numpy(output)
    if logits.ndim != 2:
        raise ValueError(
            f"gradient_attention needs a model with class outputs, [B, classes]. Received: outputs of shape "
            f"{logits.shape}. Build the model with its head."
        )
    if class_index is None:
        classes = logits.argmax(axis=-1)
    else:
        classes = checks.class_index(class_index, logits.shape[1], total)[part]
    one_hot = ops.one_hot(classes, logits.shape[1])  # [B, classes]

    def score(offsets):
        return ops.sum(ops.cast(_run_with_offsets(model, images, offsets), "float32") * one_hot)

    slopes = gradients(score, [ops.zeros_like(weights) for weights in maps])
    own = np.eye(recorder.length or 0, dtype=np.float32)  # relevance of each token for itself
    relevance, probe = own, None
    for layer, weights, slope in zip(layers, maps, slopes, strict=True):
        # [B, N, N], or [B, 1, N] for attention pooling
        positive = np.maximum(_inputs.to_numpy(weights) * _inputs.to_numpy(slope), 0.0).mean(axis=1)
        if isinstance(layer, MAPHead):
            probe = positive[:, 0]  # [B, N]
        else:
            relevance = relevance + positive @ relevance  # [B, N, N]
    layout = recorder.layout()
    if probe is None:
        relevance = relevance - own
    return layout.to_grid(layout.output_row(relevance, probe)).astype(np.float32)


def _run_with_offsets(model: keras.Model, images: np.ndarray, offsets: list[Any]) -> Any:
    """Return the model's scores with an offset added to the attention weights of each layer."""
    remaining, last = iter(offsets), endings(model)[-1]

    def call(layer, *args, **kwargs):
        if layer is last and activation_of(layer) in CLASSIFICATION:
            # Use the logit as the score: the gradient of a probability near 1 vanishes.
            if not hasattr(layer, "kernel"):
                return args[0]
            activation, layer.activation = layer.activation, keras.activations.linear
            try:
                return layer(*args, **kwargs)
            finally:
                layer.activation = activation
        if isinstance(layer, (EncoderBlock, MAPHead)):
            return layer(*args, edit_scores=lambda scores: scores + next(remaining), **kwargs)
        return layer(*args, **kwargs)

    return layer_walk.walk(model, images, call)


def gradients(function: Callable[[list[Any]], Any], tensors: list[Any]) -> list[Any]:
    """Return the gradients of the scalar `function(tensors)`. Keras cannot: TensorFlow or JAX computes them."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(tensors)
            value = function(tensors)
        return tape.gradient(value, tensors, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    if backend == "jax":
        import jax

        return jax.grad(function)(tensors)
    raise NotImplementedError(
        f"gradient_attention works with the TensorFlow and JAX backends. Received: {backend!r}. attention_rollout "
        "works with every backend."
    )
