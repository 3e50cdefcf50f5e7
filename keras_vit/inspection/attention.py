"""Attention maps and attention rollout."""

import collections
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from keras_vit.inspection import _inputs, token_layout
from keras_vit.layers import EncoderBlock, MAPHead
from keras_vit.models import layer_walk
from keras_vit.util import checks

_MAPS = "arrays [B, H, N, N], one per layer, as attention_maps returns them"
_FUSIONS: dict[str, Callable[..., np.ndarray]] = {"mean": np.mean, "max": np.max, "min": np.min}


class AttentionMaps(dict):
    """Dictionary of attention weights by layer name, in execution order, with the layout of the tokens.

    Args:
        maps: Maps layer names to weights: `[B, H, N, N]` for encoder blocks, `[B, H, 1, N]` for attention pooling.
        layout: Order of the tokens.
        pooling: Name of the attention pooling layer, or None.

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
        """Return the weights of attention pooling `[B, N]`, averaged over heads, or None for other poolings."""
        return None if self.pooling is None else self[self.pooling].mean(axis=1)[:, 0]

    def output_grid(self, matrix: np.ndarray) -> np.ndarray:
        """Return the weight of each patch in the model's output.

        Args:
            matrix: `[B, ..., N, N]`: a rollout or the attention weights of a layer. Row n contains the weight of each
                input token in output token n.

        Returns:
            `[B, ..., h, w]`: the mean over the rows of the tokens that the head reads, or, for a model with attention
            pooling, the mean weighted by the probe's attention.
        """
        return self.layout.to_grid(self.layout.output_row(matrix, self.probe()))

    def grids(self) -> dict[str, np.ndarray]:
        """Return the attention map of each layer and head, `[B, H, h, w]` by layer name.

        The map of an encoder block contains the attention weights of the class token if the head reads this token.
        Otherwise, the map contains the mean attention weights of the patches. The map of attention pooling contains the
        attention weights of the probe.
        """
        return {
            name: self.layout.to_grid(weights[:, :, 0] if name == self.pooling else self.layout.output_row(weights))
            for name, weights in self.items()
        }


def attention_maps(model: keras.Model, images: Any, batch_size: int = 32) -> AttentionMaps:
    """Return the attention weights of every layer.

    The model's layers run once, in order. Attention pooling and nested models are included.

    Args:
        model: A `VisionTransformer`, or a functional or sequential model with one inside.
        images: Inputs of the model, `[B, height, width, channels]`.
        batch_size: Number of images per call. The result contains the weights of all images.

    Returns:
        `AttentionMaps` from layer names to float32 arrays: `[B, H, N, N]` for encoder blocks, `[B, H, 1, N]` for
        attention pooling. Rows sum to 1.

    Raises:
        ValueError: If the model has no attention, or is a subclass with a custom `call`, in which layers cannot be
            intercepted.

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
    for batch in _inputs.batches(images, checks.positive_int("batch_size", batch_size)):
        count: collections.Counter = collections.Counter()

        def keep(layer, weights, _, count=count):
            count[layer.name] += 1  # nested models can have layers of the same name
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

    `on_weights` is called with the layer (an encoder block or attention pooling), its weights, and the token layout
    recorded so far. Returns the model's output and the recorder of the token layout.
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
        recorder.see(layer, args[0] if args else None)
        return output

    return layer_walk.walk(model, images, call), recorder


def require_attention(model: keras.Model) -> None:
    """Raise a ValueError if a model has no attention layers."""
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
    """Return the share of each input token in each token of the last layer.

    In each layer, the heads are fused, the identity is added for the residual connection, and the rows are normalized
    to sum to 1. The rollout is the product of the resulting matrices.

    Args:
        maps: Result of `attention_maps`, or a list of arrays `[B, H, N, N]`, one per layer, first to last.
        head_fusion: How to fuse the heads: `"mean"`, `"max"` or `"min"`.
        discard_ratio: Fraction of the weights to set to zero, in [0, 1). The smallest weights of each image are set to
            zero in each layer.
        residual: Whether to add the identity for the residual connection. If False, only attention counts.

    Returns:
        float32 `[B, N, N]`: row n contains the share of each input token in output token n, and sums to 1.
        `maps.output_grid(rollout)` returns the share of each patch in the output.

    References:
        - [Quantifying Attention Flow in Transformers](https://arxiv.org/abs/2005.00928)

    Example:
    >>> maps = attention_maps(model, images)
    >>> rollout = attention_rollout(maps)
    >>> rollout.shape, maps.output_grid(rollout).shape
    ((4, 17, 17), (4, 4, 4))
    """
    own = maps.blocks() if isinstance(maps, AttentionMaps) else maps
    values = checks.sequence("maps", own.values() if isinstance(own, Mapping) else own, _MAPS)
    layers = [checks.numbers_of("maps", weights, f"a list of {_MAPS}", ndim=4) for weights in values]
    checks.choice("head_fusion", head_fusion, tuple(_FUSIONS))
    checks.rate("discard_ratio", discard_ratio)
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
    """Extend a rollout by one layer; the options are the same as for `attention_rollout`.

    `rollout` covers the previous layers, float64 `[B, N, N]`, or is None for the first layer. `weights` are the
    attention weights of the next layer, `[B, H, N, N]`.
    """
    fused = _FUSIONS[head_fusion](np.asarray(weights, np.float64), axis=1)  # [B, N, N]
    if count := int(fused[0].size * discard_ratio):
        flat = fused.reshape(len(fused), -1)  # [B, N*N]
        smallest = np.argpartition(flat, count - 1, axis=1)[:, :count]
        np.put_along_axis(flat, smallest, 0.0, axis=1)
    if residual:
        fused = fused + np.eye(fused.shape[-1])
    total = fused.sum(axis=-1, keepdims=True)
    fused = fused / np.where(total > 0, total, 1.0)  # a row of zeros stays zero
    return fused if rollout is None else fused @ rollout  # [B, N, N]
