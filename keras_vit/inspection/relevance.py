"""Which patches speak for a class: attention, weighted with the gradient of the class's score."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import _checks
from keras_vit.inspection import _gradients, _layer_walk, attention
from keras_vit.layers import EncoderBlock, MAPHead


def gradient_attention(
    model: keras.Model, images: Any, class_index: int | Sequence[int] | None = None, batch_size: int = 16
) -> np.ndarray:
    """Returns how much each patch speaks for a class.

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
    """
    attention.require_attention(model)
    images = _layer_walk.check_images(model, images)
    if class_index is not None:
        class_index = np.broadcast_to(np.asarray(class_index, np.int32), (len(images),))
    parts, start = [], 0
    for batch in _layer_walk.batches(images, _checks.positive_int("batch_size", batch_size)):
        chosen = None if class_index is None else class_index[start : start + len(batch)]
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
    relevance = np.eye(recorder.length, dtype=np.float32)
    probe = None
    for layer, weights, slope in zip(layers, maps, slopes, strict=True):
        # [B, N, N], or [B, 1, N] for attention pooling
        positive = np.maximum(_layer_walk.to_numpy(weights) * _layer_walk.to_numpy(slope), 0.0).mean(axis=1)
        if isinstance(layer, MAPHead):
            probe = positive[:, 0]  # [B, N]
        else:
            relevance = relevance + positive @ relevance  # [B, N, N]
    layout = recorder.layout()
    if probe is None:
        relevance = relevance - np.eye(recorder.length, dtype=np.float32)  # each patch's own, the same for all
    return layout.to_grid(layout.output_row(relevance, probe)).astype(np.float32)


def _run_with_offsets(model: keras.Model, images: np.ndarray, offsets: list[Any]) -> Any:
    """Returns a model's scores when an offset, here zero, is added to each layer's attention weights."""
    remaining = iter(offsets)

    def call(layer, *args, **kwargs):
        if isinstance(layer, EncoderBlock):
            return _encoder_block(layer, args[0], next(remaining))
        if isinstance(layer, MAPHead):
            return _attention_pooling(layer, args[0], next(remaining))
        if isinstance(layer, keras.layers.Softmax) or (
            isinstance(layer, keras.layers.Activation)
            and layer.activation in (keras.activations.softmax, keras.activations.sigmoid)
        ):
            return args[0]  # the score is what comes before: a probability near 1 has no gradient left
        return layer(*args, **kwargs)

    return _layer_walk.walk(model, images, call)


def _encoder_block(block: EncoderBlock, x: Any, offset: Any) -> Any:
    """Returns the block's output `[B, N, D]` with an offset to its attention weights; a test holds it to the block."""
    normed = block.norm_0(x)
    y = block.attention(normed) + _attended(block.attention, normed, offset)
    x = x + block.scale_0(y)  # [B, N, D]
    return x + block.scale_1(block.mlp(block.norm_1(x)))  # [B, N, D]


def _attention_pooling(head: MAPHead, x: Any, offset: Any) -> Any:
    """Returns the pooled vector `[B, D]` with an offset to the probe's weights."""
    probe = ops.broadcast_to(ops.cast(head.probe, x.dtype), (x.shape[0], 1, x.shape[-1]))  # [B, 1, D]
    pooled = head.attention(probe, context=x) + _attended(head.attention, x, offset)
    pooled = pooled + head.mlp(head.norm(pooled))  # [B, 1, D]
    return ops.squeeze(pooled, axis=1)  # [B, D]


def _attended(attention: Any, context: Any, offset: Any) -> Any:
    """Returns what weights `[B, H, N, M]` add to attention's output, which is linear in them, `[B, N, D]`."""
    mixed = ops.einsum("bhnm,bmhk->bnhk", offset, attention.value(context))
    if attention.output_projection == "none":
        return ops.reshape(mixed, (*mixed.shape[:2], -1))
    return ops.einsum("bnhk,hkd->bnd", mixed, ops.cast(attention.out.kernel, mixed.dtype))
