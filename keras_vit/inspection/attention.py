"""Attention maps, and what follows from them: where the output looks, and attention rollout."""

import collections
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from keras_vit import _checks
from keras_vit.inspection import _inputs, token_layout
from keras_vit.layers import EncoderBlock, MAPHead
from keras_vit.models import layer_walk

_MAPS = "arrays [B, H, N, N], one per layer, as attention_maps returns them"
_FUSIONS: dict[str, Callable[..., np.ndarray]] = {"mean": np.mean, "max": np.max, "min": np.min}


class AttentionMaps(dict):
    """Attention weights by layer, first to last, with the layout of the tokens.

    Args:
        maps: Layer name to weights, `[B, H, N, N]`; `[B, H, 1, N]` for attention pooling.
        layout: Which token is which.
        pooling: Name of the layer that is attention pooling, or None.

    Example:
    >>> maps = attention_maps(model, images)
    >>> maps.grids()["encoderblock_0"].shape  # images, heads, rows, columns
    (4, 2, 4, 4)
    """

    def __init__(self, maps: Mapping[str, np.ndarray], layout: token_layout.TokenLayout, pooling: str | None = None):
        super().__init__(maps)
        self.layout = layout
        self.pooling = pooling

    def blocks(self) -> dict[str, np.ndarray]:
        """Return the weights of the encoder blocks by name, `[B, H, N, N]` each."""
        return {name: weights for name, weights in self.items() if name != self.pooling}

    def probe(self) -> np.ndarray | None:
        """Return the weights of attention pooling, mean of its heads, `[B, N]`, or None where there is none."""
        return None if self.pooling is None else self[self.pooling].mean(axis=1)[:, 0]

    def output_grid(self, matrix: np.ndarray) -> np.ndarray:
        """Return the share of each patch in the output.

        Args:
            matrix: Weight of each token (last axis) in each token, `[B, ..., N, N]`: a rollout, or weights of a layer.

        Returns:
            `[B, ..., h, w]`: the rows of the tokens that the output reads, averaged; the weighted mean of rows where it
            reads by attention pooling.
        """
        return self.layout.to_grid(self.layout.output_row(matrix, self.probe()))

    def grids(self) -> dict[str, np.ndarray]:
        """Return the attention map of each layer and head, `[B, H, h, w]` by layer name.

        For models that read the class token it is the token's row, else the mean of the patches' rows; for attention
        pooling the row of its probe.
        """
        return {
            name: self.layout.to_grid(weights[:, :, 0] if name == self.pooling else self.layout.output_row(weights))
            for name, weights in self.items()
        }


def attention_maps(model: keras.Model, images: Any, batch_size: int = 32) -> AttentionMaps:
    """Return the attention weights of every layer.

    The model's own layers run once, in the model's order; attention pooling and models inside of models are included.

    Args:
        model: A `VisionTransformer`, or a functional or sequential model with one inside.
        images: `[B, height, width, channels]`, as the model takes them.
        batch_size: How many images run at a time. The result holds the weights of all.

    Returns:
        Layer name to float32 `[B, H, N, N]` (rows sum to 1), and `[B, H, 1, N]` for attention pooling.

    Raises:
        ValueError: If the model has no attention, or is a subclass whose layers cannot be followed.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), appendix D.8

    Example:
    >>> maps = attention_maps(model, images)
    >>> {name: weights.shape for name, weights in maps.items()}
    {'encoderblock_0': (4, 2, 17, 17), 'encoderblock_1': (4, 2, 17, 17)}
    """
    require_attention(model)
    images = _inputs.check_images(model, images)
    parts: dict[str, list[np.ndarray]] = {}
    poolings: set[str] = set()
    for batch in _inputs.batches(images, _checks.positive_int("batch_size", batch_size)):
        count: collections.Counter = collections.Counter()

        def keep(layer, weights, _, count=count):
            count[layer.name] += 1  # two models inside of one can have layers of the same name
            name = layer.name if count[layer.name] == 1 else f"{layer.name}#{count[layer.name]}"
            parts.setdefault(name, []).append(_inputs.to_numpy(weights))
            if isinstance(layer, MAPHead):
                poolings.add(name)

        _, recorder = run(model, batch, keep)
    maps = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    return AttentionMaps(maps, recorder.layout(), next(iter(poolings), None))


def run(
    model: keras.Model, images: Any, on_weights: Callable[[keras.layers.Layer, Any, token_layout.LayoutRecorder], None]
) -> tuple[Any, token_layout.LayoutRecorder]:
    """Run a model on a batch and pass each layer's attention weights to a callback.

    `on_weights` takes the encoder block or attention pooling, its weights, and the token layout recorded so far.
    The result is the model's output and the token layout.
    """
    recorder = token_layout.LayoutRecorder()

    def call(layer, *args, **kwargs):
        if not isinstance(layer, (EncoderBlock, MAPHead)):
            output = layer(*args, **kwargs)
        else:
            output, weights = layer(*args, return_attention_scores=True, **kwargs)
            if isinstance(layer, EncoderBlock):
                recorder.length = int(weights.shape[-1])
            on_weights(layer, weights, recorder)
        recorder.see(layer, args[0] if args else None, output)
        return output

    return layer_walk.walk(model, images, call), recorder


def require_attention(model: keras.Model) -> None:
    """Raise a ValueError if a model has no attention to look at."""
    _inputs.check_model(model)
    if not layer_walk.has_attention(model):
        raise ValueError(
            f"The model must have attention layers. Received: {model.name!r} of class {type(model).__name__}, "
            "which has none (BiT is a ResNet). layer_features, cka and occlusion_sensitivity work with any model."
        )


def attention_rollout(
    maps: AttentionMaps | Mapping[str, np.ndarray] | list[np.ndarray],
    head_fusion: str = "mean",
    discard_ratio: float = 0.0,
    residual: bool = True,
) -> np.ndarray:
    """Return how much of each input token is in each token of the last layer, following attention from layer to layer.

    Each layer's heads are fused, the identity is added for the residual connection, rows are normalized to 1, and the
    layers are multiplied.

    Args:
        maps: What `attention_maps` returns, or `[B, H, N, N]` of each layer, first to last.
        head_fusion: `"mean"`, `"max"` or `"min"` over the heads.
        discard_ratio: Share of each image's weights, the smallest ones, to set to zero in every layer, in [0, 1).
        residual: Whether the residual connection counts as much as attention; without it, only attention is followed.

    Returns:
        `[B, N, N]`, float32, rows that sum to 1: row n says what token n is made of. `maps.output_grid(rollout)` is
        what the output is made of, patch by patch.

    References:
        - [Quantifying Attention Flow in Transformers](https://arxiv.org/abs/2005.00928)

    Example:
    >>> maps = attention_maps(model, images)
    >>> rollout = attention_rollout(maps)
    >>> rollout.shape, maps.output_grid(rollout).shape
    ((4, 17, 17), (4, 4, 4))
    """
    own = maps.blocks() if isinstance(maps, AttentionMaps) else maps
    values = _checks.sequence("maps", own.values() if isinstance(own, Mapping) else own, _MAPS)
    layers = [_checks.numbers_of("maps", weights, f"a list of {_MAPS}", ndim=4) for weights in values]
    _checks.choice("head_fusion", head_fusion, tuple(_FUSIONS))
    _checks.rate("discard_ratio", discard_ratio)
    rollout = None
    for weights in layers:
        rollout = rollout_step(rollout, weights, head_fusion, discard_ratio, residual)
    if rollout is None:
        raise ValueError("attention_rollout needs the maps of at least one layer. Received: none.")
    return rollout.astype(np.float32)


def rollout_step(
    rollout: np.ndarray | None,
    weights: np.ndarray,
    head_fusion: str = "mean",
    discard_ratio: float = 0.0,
    residual: bool = True,
) -> np.ndarray:
    """Follow attention through one more layer; other arguments as of `attention_rollout`.

    `rollout` is that of the layers before, float64 `[B, N, N]` or None for the first, `weights` are `[B, H, N, N]`.
    """
    fused = _FUSIONS[head_fusion](np.asarray(weights, np.float64), axis=1)  # [B, N, N]
    if count := int(fused[0].size * discard_ratio):
        flat = fused.reshape(len(fused), -1)  # [B, N*N]
        smallest = np.argpartition(flat, count - 1, axis=1)[:, :count]
        np.put_along_axis(flat, smallest, 0.0, axis=1)
    if residual:
        fused = fused + np.eye(fused.shape[-1])
    total = fused.sum(axis=-1, keepdims=True)
    fused = fused / np.where(total > 0, total, 1.0)  # a row of zeros stays
    return fused if rollout is None else fused @ rollout  # [B, N, N]
