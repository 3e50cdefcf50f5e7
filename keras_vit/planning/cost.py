"""Parameters, multiply-adds and saved activations of a model, counted from its configuration.

Only the multiply-adds of convolutions and matrix products are counted. Norms, softmax and activation functions would
add about one percent. One multiply-add is two floating-point operations.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from keras_vit import models
from keras_vit.models import heads, parts
from keras_vit.models.config import pair


@dataclasses.dataclass(frozen=True)
class Cost:
    """Costs of a model.

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

    parameters: int
    macs: int
    activations: int
    tokens: int = 0

    @property
    def training_flops(self) -> int:
        """Floating-point operations of forward and backward pass per image: three times the forward pass."""
        return 6 * self.macs


def of_variant(name: str, **arguments: Any) -> Cost:
    """Return the costs of a named model without building it. See `keras_vit.create_model` for the arguments."""
    if name in models.VIT:
        return of_config(models.ViTConfig(**{**dataclasses.asdict(models.VIT[name]), **arguments}))
    if name in models.BIT:
        return of_config(models.BiTConfig(**{**dataclasses.asdict(models.BIT[name]), **arguments}))
    raise ValueError(f"There is no model named {name!r}. Known names: {', '.join(models.list_models())}.")


def of_config(config: models.ViTConfig | models.BiTConfig) -> Cost:
    """Return the costs of a model with this configuration. A model for any image size is counted at 224 pixels."""
    if isinstance(config, models.MAEConfig):
        return _mae(config)
    return _bit(config) if isinstance(config, models.BiTConfig) else _vit(config)


class Tally:
    """Sums over the operations of a model, in the order of the forward pass."""

    def __init__(self):
        self.parameters = self.macs = self.activations = 0

    def dense(self, rows: int, inputs: int, outputs: int, bias: bool = True, parameters: bool = True) -> None:
        """Add a matrix product of `rows` vectors."""
        self.parameters += (inputs * outputs + bias * outputs) if parameters else 0
        self.macs += rows * inputs * outputs
        self.activations += rows * inputs

    def conv(self, size: tuple[int, int], kernel: int, inputs: int, outputs: int, strides: int = 1) -> tuple[int, int]:
        """Add a convolution of an `[h, w, inputs]` map and return the size of its output."""
        height, width = -(-size[0] // strides), -(-size[1] // strides)
        self.parameters += kernel * kernel * inputs * outputs
        self.macs += height * width * kernel * kernel * inputs * outputs
        self.activations += size[0] * size[1] * inputs
        return height, width

    def norm(self, rows: int, width: int, bias: bool = True) -> None:
        """Add a norm with a scale and an optional bias."""
        self.parameters += (1 + bias) * width
        self.activations += rows * width

    def elementwise(self, count: int) -> None:
        """Add a function whose gradient needs its input."""
        self.activations += count

    def dropout(self, count: int) -> None:
        """Add the mask of a dropout: one byte per value, which is half of a 16-bit number."""
        self.activations += count // 2

    def add(self, other: "Tally") -> None:
        """Add the sums of another tally."""
        self.parameters += other.parameters
        self.macs += other.macs
        self.activations += other.activations

    def cost(self, tokens: int = 0) -> Cost:
        return Cost(self.parameters, self.macs, self.activations, tokens)


def _vit(config: models.ViTConfig) -> Cost:
    tally, tokens = _encoder(config, config.num_tokens), config.num_tokens
    if isinstance(config, models.MaskedPatchConfig):
        tally.parameters += config.hidden_size  # the mask token
        tally.dense(config.num_patches, config.hidden_size, math.prod(config.output_shape))
    else:
        heads.create(config).count(tally, tokens)
    return tally.cost(tokens)


def _mae(config: models.MAEConfig) -> Cost:
    """Count the encoder on the visible patches and the decoder on all patches. Fixed positions count as weights."""
    prefix = config.num_prefix_tokens + config.num_registers
    tally, tokens = _encoder(config, prefix + config.num_visible), prefix + config.num_patches
    decoder, width = config.decoder, config.decoder_hidden_size
    tally.dense(prefix + config.num_visible, config.hidden_size, width)
    tally.parameters += width + tokens * width  # the mask token, and the positions
    _blocks(tally, decoder, tokens)
    parts.norm_layer(decoder).count(tally, tokens, width)
    tally.dense(tokens, width, config.num_pixels)
    return tally.cost(tokens)


def _encoder(config: models.ViTConfig, tokens: int) -> Tally:
    """Count all operations before the pooling. The blocks process `tokens` tokens."""
    tally, width = Tally(), config.hidden_size
    channels = config.channels
    if config.resnet_blocks is not None:
        _, channels = _resnet(tally, config, config.resnet_blocks, 64)
    patch = pair(config.patch_size)
    patches, pixels = config.grid[0] * config.grid[1], patch[0] * patch[1] * channels
    tally.dense(patches, pixels, width)
    if config.patch_norm:
        tally.norm(patches, pixels)
        tally.norm(patches, width)
    tally.parameters += (config.num_prefix_tokens + config.num_registers) * width
    tally.parameters += _positions(config)
    if config.dropout_rate:
        tally.dropout(tokens * width)

    norm = parts.norm_layer(config)
    if config.norm_before_blocks:
        norm.count(tally, tokens, width)
    _blocks(tally, config, tokens)
    if config.final_norm and not config.norm_after_pooling:
        norm.count(tally, tokens, width)
    return tally


def _blocks(tally: Tally, config: models.ViTConfig, tokens: int) -> None:
    """Count all encoder blocks on `tokens` tokens."""
    width, blocks = config.hidden_size, Tally()
    relative = tokens if config.position_embedding == "relative" else None
    block = parts.encoder_block(config, relative_positions=relative)
    for _ in range(config.num_layers):
        block.count(blocks, tokens, width)
    if config.remat == "blocks" and config.num_layers:  # the input of each block, and one recomputed block at a time
        blocks.activations = config.num_layers * tokens * width + blocks.activations // config.num_layers
    if config.num_layers and (queries := parts.attention_layer(config).queries_at_once(tokens)):
        blocks.activations += config.num_heads * queries * tokens  # the weights of one chunk at a time
    tally.add(blocks)


def _positions(config: models.ViTConfig) -> int:
    """Return the number of parameters of position embeddings that are added to tokens."""
    grid, width, prefix = config.grid, config.hidden_size, config.num_prefix_tokens
    learned = {
        "learned": config.num_position_entries * width,
        "learned2d": (grid[0] + grid[1]) * (width // 2) + prefix * width,
    }
    times = config.num_layers if config.position_embedding_at == "every_layer" else 1
    return times * learned.get(config.position_embedding, 0)


def _bit(config: models.BiTConfig) -> Cost:
    tally = Tally()
    size, channels = _resnet(tally, config, config.block_sizes, 64 * config.width_factor, norm_first=True)
    tally.norm(size[0] * size[1], channels)
    if config.include_top:
        tally.dense(1, channels, config.classes or 0)
    return tally.cost()


def _resnet(
    tally: Tally,
    config: models.ViTConfig | models.BiTConfig,
    block_sizes: Sequence[int],
    width: int,
    norm_first: bool = False,
) -> tuple[tuple[int, int], int]:
    """Count a ResNet with norms before or after its convolutions. Return the size and channels of its output."""
    channels = width
    size = tally.conv(pair(config.image_size or 224), 7, config.channels, channels, 2)
    if not norm_first:
        tally.norm(size[0] * size[1], channels)
    tally.elementwise(size[0] * size[1] * channels)  # the max pooling
    size = -(-size[0] // 2), -(-size[1] // 2)
    for block, units in enumerate(block_sizes):
        features = width * 2**block
        for unit in range(units):
            strides = 2 if block and not unit else 1
            if norm_first:
                tally.norm(size[0] * size[1], channels)
            if channels != 4 * features or strides > 1:
                projected = tally.conv(size, 1, channels, 4 * features, strides)
                tally.activations -= size[0] * size[1] * channels  # shared with the first convolution
                if not norm_first:
                    tally.norm(projected[0] * projected[1], 4 * features)
            tally.conv(size, 1, channels, features)
            tally.norm(size[0] * size[1], features)
            size = tally.conv(size, 3, features, features, strides)
            tally.norm(size[0] * size[1], features)
            tally.conv(size, 1, features, 4 * features)
            if not norm_first:
                tally.norm(size[0] * size[1], 4 * features)
            channels = 4 * features
    return size, channels
