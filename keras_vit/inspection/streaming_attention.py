"""Attention of one image layer by layer, in the memory of a single layer's weights."""

from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.inspection import _layer_walk, attention
from keras_vit.layers import MAPHead


class AttentionSummary(NamedTuple):
    """Attention of the output to the patches of one image."""

    names: tuple[str, ...]
    layers: np.ndarray  # [layers, H, h, w], of the tokens that the output reads
    rollout: np.ndarray  # [layers, h, w], from the first layer to each layer


def stream_attention(
    model: keras.Model, image: np.ndarray, head_fusion: str = "mean", discard_ratio: float = 0.0
) -> AttentionSummary:
    """Return what `attention_maps(...).grids()` and `attention_rollout` return for one image, one layer at a time."""
    attention.require_attention(model)
    attention.check_rollout(head_fusion, discard_ratio)
    images = _layer_walk.check_images(model, np.asarray(image)[None])
    # Which tokens the output reads is known at the end of the model only, so it runs once for the layout.
    layout = attention.run(model, images, lambda *_: None)[1].layout()
    names: list[str] = []
    layers: list[np.ndarray] = []  # [H, N] each
    rollouts: list[np.ndarray] = []  # [N] each
    rollout: Any = None  # float64 [1, N, N] after the first block

    def reduce(layer, weights, _):
        nonlocal rollout
        names.append(layer.name)
        weights = _layer_walk.to_numpy(weights)  # [1, H, N, N], or [1, H, 1, N] for attention pooling
        if isinstance(layer, MAPHead):
            layers.append(weights[0, :, 0])
            rollouts.append(layout.output_row(rollout, weights.mean(axis=1)[:, 0])[0])
            return
        rollout = attention.rollout_step(rollout, weights, head_fusion, discard_ratio, residual=True)  # [1, N, N]
        layers.append(layout.output_row(weights)[0])
        rollouts.append(layout.output_row(rollout)[0])

    attention.run(model, images, reduce)
    if len({len(layer) for layer in layers}) > 1:  # layers with different numbers of heads have only their mean
        layers = [layer.mean(axis=0, keepdims=True) for layer in layers]
    return AttentionSummary(
        tuple(names),
        layout.to_grid(np.stack(layers)).astype(np.float32),
        layout.to_grid(np.stack(rollouts)).astype(np.float32),
    )
