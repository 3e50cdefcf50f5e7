"""Attention of one image layer by layer, in the memory of a single layer's weights."""

from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.inspection import _layer_walk, attention, token_layout
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
    names: list[str] = []
    rows: list[np.ndarray] = []  # [H, prefix + 1, N]: each prefix token's row, and the mean of the patches'
    rollouts: list[np.ndarray] = []  # [prefix + 1, N]
    rollout: np.ndarray | None = None
    probe: np.ndarray | None = None

    def summary(matrix: np.ndarray, prefix: int) -> np.ndarray:
        patches = matrix[..., prefix:, :].mean(axis=-2, keepdims=True)
        return np.concatenate([matrix[..., :prefix, :], patches], axis=-2)

    def reduce(layer, weights, recorder):
        nonlocal rollout, probe
        weights = _layer_walk.to_numpy(weights)  # [1, H, N, N]
        names.append(layer.name)
        if isinstance(layer, MAPHead):
            probe = weights[0, :, 0]  # [H, N]
            return
        prefix = recorder.layout().num_prefix_tokens
        rollout = attention.rollout_step(rollout, weights, head_fusion, discard_ratio, residual=True)
        rows.append(summary(weights[0], prefix))
        rollouts.append(summary(rollout[0], prefix))

    _, recorder = attention.run(model, images, reduce)
    layout = recorder.layout()
    share = np.zeros(layout.num_prefix_tokens + 1)  # of each prefix token, and of all patches together
    for token in layout.read_tokens if layout.reads == token_layout.TOKENS else (layout.num_prefix_tokens,):
        share[min(token, layout.num_prefix_tokens)] += 1
    share = (share / share.sum()).astype(np.float32)
    layers = [np.einsum("hpn,p->hn", row, share) for row in rows]  # [H, N] each
    followed = [np.einsum("pn,p->n", row, share) for row in rollouts]  # [N] each
    if probe is not None:
        layers.append(probe)
        followed.append(probe.mean(axis=0) @ np.asarray(rollout)[0])
    return AttentionSummary(
        tuple(names),
        layout.to_grid(np.stack(_same_heads(layers))).astype(np.float32),
        layout.to_grid(np.stack(followed)).astype(np.float32),
    )


def _same_heads(layers: list[Any]) -> list[np.ndarray]:
    """Return the layers' rows, averaged over the heads if the layers differ in their number of heads."""
    if len({len(layer) for layer in layers}) == 1:
        return layers
    return [layer.mean(axis=0, keepdims=True) for layer in layers]
