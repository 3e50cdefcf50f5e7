"""Parameters, multiply-adds and saved activations of a model, computed from its configuration.

Only the multiply-adds of convolutions and matrix products are counted. Norms, softmax and activation functions would
add about one percent. One multiply-add is two floating-point operations.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

from absl import logging

from keras_vit import models
from keras_vit.layers import kernels
from keras_vit.models.config import pair
from keras_vit.zoo.variants import full_name


@dataclasses.dataclass(frozen=True)
class Cost:
    """Costs of a model or of a part of it.

    Attributes:
        parameters: Number of weights.
        macs: Multiply-adds of the forward pass per image. All tokens count, as in the paper. If the head reads only the
            class token, the last block computes less, which saves 7% in a model of twelve blocks.
        activations: Number of values per image that the backward pass needs from the forward pass: inputs of matrix
            products, norms, poolings and GELU, attention weights, and dropout masks. Values that
            `keras_vit.layers.kernels` recompute are not included. With `remat` or attention in chunks, recomputed
            values count for one block instead of all. The temporary values of a step are not included: see
            `planning.plan`.
        tokens: Length of the transformer's sequence; 0 without a transformer.
    """

    parameters: int = 0
    macs: int = 0
    activations: int = 0
    tokens: int = 0

    @property
    def training_flops(self) -> int:
        """Floating-point operations of forward and backward pass per image: three times the forward pass."""
        return 6 * self.macs

    def __add__(self, other: "Cost") -> "Cost":
        parameters, macs = self.parameters + other.parameters, self.macs + other.macs
        return Cost(parameters, macs, self.activations + other.activations, self.tokens + other.tokens)

    def __rmul__(self, times: int) -> "Cost":
        return Cost(times * self.parameters, times * self.macs, times * self.activations)


def of_variant(name: str, **arguments: Any) -> Cost:
    """Return the costs of a named model without building it. See `keras_vit.create_model` for the arguments."""
    name = full_name(name)
    config_class = models.ViTConfig if name in models.VIT else models.BiTConfig
    return of_config(config_class(**{**dataclasses.asdict(models.VIT.get(name) or models.BIT[name]), **arguments}))


def of_config(config: models.ViTConfig | models.BiTConfig) -> Cost:
    """Return the costs of a model with this configuration. A model for any image size is counted at 224 pixels."""
    if isinstance(config, models.BiTConfig):
        cost, area, channels = _resnet(config, config.block_sizes, 64 * config.width_factor, norm_first=True)
        cost += _norm(area, channels)
        return cost + _dense(1, channels, config.classes or 0) if config.include_top else cost
    tokens, width = config.num_tokens, config.hidden_size
    if isinstance(config, models.MAEConfig):
        return _mae(config) + Cost(tokens=tokens)
    cost = _encoder(config, tokens) + Cost(tokens=tokens)
    if isinstance(config, models.MaskedPatchConfig):
        mask_token = Cost(width)
        return cost + mask_token + _dense(config.num_patches, width, math.prod(config.output_shape))
    return cost + _head(config)


def _dense(rows: int, inputs: int, outputs: int, biases: int | None = None) -> Cost:
    """Return the cost of a matrix product of `rows` vectors. `biases` is the number of biases, None for `outputs`."""
    weights = inputs * outputs
    return Cost(weights + (outputs if biases is None else biases), rows * weights, rows * inputs)


def _norm(rows: int, width: int, kind: str = "layer") -> Cost:
    """Return the cost of a norm of `rows` vectors, with a scale and, unless `kind` is "rms", a bias."""
    return Cost(width if kind == "rms" else 2 * width, activations=rows * width)


def _encoder(config: models.ViTConfig, tokens: int) -> Cost:
    """Return the cost of all layers before the head. The blocks process `tokens` tokens."""
    width, prefix, channels, cost = config.hidden_size, config.num_prefix_tokens, config.channels, Cost()
    if config.resnet_blocks is not None:
        cost, _, channels = _resnet(config, config.resnet_blocks, 64)
    patches, values = math.prod(config.grid), math.prod(pair(config.patch_size)) * channels
    cost += _dense(patches, values, width)
    if config.patch_norm:
        cost += _norm(patches, values) + _norm(patches, width)
    tables = config.num_layers if config.position_embedding_at == "every_layer" else 1
    cost += Cost((prefix + config.num_registers) * width + tables * config.num_position_entries * width)
    if config.position_embedding == "learned2d":  # rows and columns share the width
        cost += Cost(tables * (sum(config.grid) * (width // 2) + prefix * width))
    cost += _blocks(config, tokens)
    if config.norm_before_blocks:
        cost += _norm(tokens, width, config.norm)
    if config.final_norm:
        cost += _norm(1 if config.norm_after_pooling else tokens, width, config.norm)
    return cost


def _blocks(config: models.ViTConfig, tokens: int) -> Cost:
    """Return the cost of all encoder blocks."""
    block, layers = _block(config, tokens), config.num_layers
    if not layers:
        return Cost()
    if config.has_own_blocks:
        block = dataclasses.replace(block, parameters=_parameters_of_own_block(config))
    dropout, relative = config.attention_dropout_rate, config.position_embedding == "relative"
    chunk = None if dropout or relative else kernels.queries_per_chunk(tokens, config.attention_chunk_size)
    weights = config.num_heads * (chunk or tokens) * tokens
    if chunk is None:  # dropout saves its output and a mask of one byte per value, half of a 16-bit number
        block += Cost(activations=weights * 5 // 2 if dropout else weights)
    saved = layers * block.activations
    if config.remat == "blocks":  # the input of each block, and one recomputed block at a time
        saved = layers * tokens * config.hidden_size + block.activations
    return Cost(layers * block.parameters, layers * block.macs, saved + (weights if chunk else 0))


def _block(config: models.ViTConfig, tokens: int) -> Cost:
    """Return the cost of an encoder block without the saved attention weights."""
    width, heads, bias = config.hidden_size, config.attention_size, config.qkv_bias
    head_dim = heads // config.num_heads
    cost = 2 * _norm(tokens, width, config.norm) + _mlp(config, tokens)
    cost += _dense(tokens, width, 3 * heads, heads * (sum(bias) if isinstance(bias, tuple) else 3 * bias))
    cost += Cost(macs=2 * tokens**2 * heads, activations=3 * tokens * heads)  # query, key and value
    if config.output_projection != "none":
        cost += _dense(tokens, heads, width, width if config.output_projection == "bias" else 0)
    if config.qk_norm:  # all attention heads share a scale
        cost += Cost(2 * _norm(0, head_dim, config.norm).parameters, activations=2 * tokens * heads)
    if config.position_embedding == "relative":
        cost += Cost((2 * tokens - 1) * head_dim, macs=tokens * (2 * tokens - 1) * heads)
    if config.layer_scale is not None:
        cost += Cost(2 * width, activations=2 * tokens * width)
    if config.dropout_rate:  # masks of one byte per value
        cost += Cost(activations=tokens * (2 * width + config.mlp_dim) // 2)
    return cost


def _parameters_of_own_block(config: models.ViTConfig) -> int:
    """Count the weights of a user's block in a model of one block. The other costs of the block are unknown."""
    logging.warning(
        "The operations and the memory of block=%r with attention=%r are unknown; the standard block's are used.",
        *(config.block, config.attention),
    )
    arguments = models.ViTConfig.of_encoder({name: getattr(config, name) for name in models.ViTConfig.names()})
    model = models.VisionTransformer(**{**arguments, "num_layers": 1, "pooling": None, "include_top": False})
    return model.get_layer("encoderblock_0").count_params()


def _mlp(config: models.ViTConfig, rows: int) -> Cost:
    width, hidden = config.hidden_size, config.mlp_dim
    # Values saved by the activation: the input of GELU, or the SiLU and both factors of the gated product.
    gates, saved = (2, 3) if config.mlp == "swiglu" else (1, 1)
    return _dense(rows, width, gates * hidden) + Cost(activations=saved * rows * hidden) + _dense(rows, hidden, width)


def _head(config: models.ViTConfig) -> Cost:
    """Return the cost of the layers after the encoder."""
    width, tokens, heads = config.hidden_size, config.num_tokens, 2 if config.distillation_token is True else 1
    if config.head is not None:
        return _given_head(config.head, math.prod(config.grid), width)
    rows, cost = tokens if config.pooling is None else heads, Cost()
    if config.pooling == "map":  # a learned probe is the only query
        cost += Cost(width) + 2 * _dense(1, width, width) + _dense(tokens, width, 2 * width)
        cost += Cost(macs=2 * tokens * width, activations=(1 + 2 * tokens) * width + config.num_heads * tokens)
        cost += _norm(1, width, config.norm) + _mlp(config, 1)
    if config.representation_size is not None:
        cost += _dense(rows, config.pooled_size, config.representation_size)
    if config.include_top:
        cost += heads * _dense(rows // heads, config.num_features, config.classes or 0)
    return cost


def _given_head(head: Any, rows: int, width: int) -> Cost:
    """Return the cost of a segmentation head on `rows` patches. Other heads count with their weights if built."""
    width *= len(getattr(head, "blocks", None) or [0])
    if isinstance(head, models.LinearSegmenter):
        return _norm(rows, width) + _dense(rows, width, head.classes)
    if not isinstance(head, models.UpsampleSegmenter):
        return Cost(head.count_params() if head.built else 0)
    cost = _dense(rows, width, head.width)
    for before, after in itertools.pairwise(head.widths):
        cost += _dense(rows, before, 16 * after, after)  # a kernel of 4 x 4
        rows *= 4
        cost += _norm(rows, after) + Cost(activations=rows * after)  # GELU
    return cost + _dense(rows, head.widths[-1], head.classes)


def _mae(config: models.MAEConfig) -> Cost:
    """Count the encoder on the visible patches and the decoder on all patches. Fixed positions count as weights."""
    prefix, decoder = config.num_prefix_tokens + config.num_registers, config.decoder
    tokens, visible, width = config.num_tokens, prefix + config.num_visible, decoder.hidden_size
    cost = _encoder(config, visible) + _dense(visible, config.hidden_size, width)
    cost += Cost(width + tokens * width)  # the mask token, and the positions
    cost += _blocks(decoder, tokens) + _norm(tokens, width, decoder.norm) + _dense(tokens, width, config.num_pixels)
    return cost


def _resnet(
    config: models.ViTConfig | models.BiTConfig, block_sizes: Sequence[int], width: int, norm_first: bool = False
) -> tuple[Cost, int, int]:
    """Return the cost of a ResNet with norms before or after its convolutions, and the area and channels of its map."""

    def area(stride):
        height, width = pair(config.image_size or 224)
        return -(-height // stride) * -(-width // stride)

    root, pooling = 7 * 7 * config.channels * width, Cost(activations=area(2) * width)
    cost = Cost(root, area(2) * root, area(1) * config.channels) + pooling
    if not norm_first:
        cost += _norm(area(2), width)
    stride, channels = 4, width
    for stage, units in enumerate(block_sizes):
        features = width * 2**stage
        for unit in range(units):
            before = area(stride)
            stride *= 2 if stage and not unit else 1
            after, kernel = area(stride), 3 * 3 * features * features
            cost += _dense(before, channels, features, 0) + _norm(before, features)
            cost += Cost(kernel, after * kernel, before * features) + _norm(after, features)
            cost += _dense(after, features, 4 * features, 0)
            cost += _norm(before, channels) if norm_first else _norm(after, 4 * features)
            if unit == 0:  # the projection of the shortcut reads the input of the first convolution
                cost += Cost(channels * 4 * features, after * channels * 4 * features)
                if not norm_first:
                    cost += _norm(after, 4 * features)
            channels = 4 * features
    return cost, area(stride), channels
