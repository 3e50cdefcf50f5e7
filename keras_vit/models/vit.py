"""The Vision Transformer and its hybrids."""

from typing import Any

import keras

from keras_vit.layers import (
    AddPositionEmbs,
    ClassToken,
    Dropout,
    FirstTokens,
    FlattenGrid,
    PatchEncoder,
    RegisterTokens,
    ResNetStage,
    RotaryPositions,
    resnet,
)
from keras_vit.models import heads, parts
from keras_vit.models.arguments import configured_by, with_arguments
from keras_vit.models.base import ConfiguredModel, images_input, normalized, resolve_policy
from keras_vit.models.vit_config import ViTConfig


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionTransformer(ConfiguredModel):
    """Vision Transformer or hybrid of any size.

    A functional `keras.Model` from float images in [-1, 1], `[B, height, width, channels]`, to logits `[B, classes]`.
    The layers have the names of the reference: `embedding`, `cls`, `posembed_input`, `encoderblock_0` ...,
    `encoder_norm`, `pre_logits`, `head`.

    Args:
        See `keras_vit.models.ViTConfig`.

    Raises:
        ValueError: If an argument is out of range, or two arguments exclude each other.
        TypeError: If an argument is unknown.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929)
        - [How to train your ViT?](https://arxiv.org/abs/2106.10270)

    Example:
    >>> model = keras_vit.VisionTransformer(hidden_size=64, num_layers=2, num_heads=4, mlp_dim=128, classes=10)
    >>> model.output_shape
    (None, 10)
    >>> tokens = keras.Model(model.input, model.get_layer("encoder_norm").output)
    >>> tokens.output_shape
    (None, 197, 64)
    """

    config: ViTConfig

    @configured_by(ViTConfig)
    def __init__(self, config: ViTConfig):
        super().__init__(*Builder(config).build(), config, "vision_transformer")


VisionTransformer.__doc__ = with_arguments(VisionTransformer.__doc__, ViTConfig)


class Builder:
    """Builder of a functional model from a configuration. Subclasses override single steps."""

    def __init__(self, config: ViTConfig):
        self.config, self.policy = config, resolve_policy(config.dtype)
        self.grid: keras.KerasTensor | None = None  # the embeddings of the patches, [B, h, w, D]
        # The patches of images of any size. The position embeddings are resized to the grid of these patches.
        self.position_arguments: tuple[keras.KerasTensor, ...] = ()
        self.block_arguments: dict[str, keras.KerasTensor] = {}  # call arguments of every block

    def build(self) -> tuple[Any, keras.KerasTensor]:
        """Return the symbolic inputs and output of the model."""
        images = images_input(self.config, self.policy)
        x = normalized(self.config, images)
        x = x if self.config.resnet_blocks is None else self._resnet(x)
        head = heads.create(self.config, self.policy)
        tokens = self._blocks(self._tokens(x), head.blocks)
        return images, head(tokens, self.grid)

    def _norm(self, name):
        return parts.norm_layer(self.config, self.policy, name)

    def _resnet(self, x):
        numerics, width = self.config.resnet_numerics, 64
        x = resnet.convolution(numerics, width, 7, 2, dtype=self.policy, name="conv_root")(x)
        x = resnet.group_norm(numerics, dtype=self.policy, name="gn_root")(x)
        x = keras.layers.ReLU(dtype=self.policy, name="relu_root")(x)
        x = keras.layers.MaxPooling2D(3, 2, "same", data_format="channels_last", dtype=self.policy, name="pool_root")(x)
        for index, num_units in enumerate(self.config.resnet_blocks or ()):
            x = ResNetStage(
                num_units,
                width * 2**index,
                strides=1 if index == 0 else 2,
                resnet_numerics=numerics,
                dtype=self.policy,
                name=f"block{index + 1}",
            )(x)
        return x

    def _tokens(self, x):
        """Return the encoder's input `[B, prefix + registers + h*w, D]`, including position embeddings at the input."""
        config, shared = self.config, {"dtype": self.policy}
        self.grid = grid = PatchEncoder(
            config.patch_size,
            config.hidden_size,
            flatten=False,
            norm_epsilon=config.layer_norm_epsilon if config.patch_norm else None,
            name="embedding",
            **shared,
        )(x)
        x = self._patches(FlattenGrid(name="tokens", **shared)(grid))  # [B, h*w, D]
        if config.distillation_token:
            x = ClassToken(name="dist", **shared)(x)
        if config.class_token:
            x = ClassToken(name="cls", **shared)(x)
        if config.image_size is None:
            self.position_arguments = (grid,)
        if config.position_embedding == "rope2d":
            self.block_arguments["rotation"] = self._rotary_positions()(grid)
        if config.has_position_table and config.position_embedding_at == "input":
            x = self._add_positions("posembed_input", num_registers=0)(x, *self.position_arguments)
        if config.num_registers:
            x = RegisterTokens(config.num_registers, config.num_prefix_tokens, name="registers", **shared)(x)
        if config.dropout_rate:
            x = Dropout(config.dropout_rate, name="dropout_input", **shared)(x)
        return x

    def _patches(self, x):
        """Return the patch embeddings for the encoder. Pre-training models corrupt the embeddings here."""
        return x

    def _add_positions(self, name, num_registers):
        config = self.config
        return AddPositionEmbs(
            config.grid,
            config.position_embedding,
            num_prefix_tokens=config.num_prefix_tokens,
            num_registers=num_registers,
            method=config.position_resizing,
            dtype=self.policy,
            name=name,
        )

    def _rotary_positions(self):
        config = self.config
        return RotaryPositions(
            config.attention_size // config.num_heads,
            config.num_prefix_tokens + config.num_registers,
            config.rope_base,
            config.rope_shift,
            config.rope_jitter,
            config.rope_rescale,
            dtype=self.policy,
            name="rope",
        )

    def _blocks(self, x, numbers=None):
        """Return the normalized tokens that the output depends on.

        If `numbers` is given, return a list of the normalized tokens after each of these blocks.
        """
        config = self.config
        if config.norm_before_blocks:
            x = self._norm("pre_norm")(x)
        outputs = []
        add_positions = block = None
        for index in range(config.num_layers):
            if config.position_embedding_at == "every_layer_shared":
                add_positions = add_positions or self._add_positions("posembed_shared", config.num_registers)
            elif config.position_embedding_at == "every_layer":
                add_positions = self._add_positions(f"posembed_layer_{index}", config.num_registers)
            if add_positions is not None:
                x = add_positions(x, *self.position_arguments)
            relative = config.num_tokens if config.position_embedding == "relative" else None
            name, drop_path_rate = f"encoderblock_{index}", config.drop_path_rates[index]
            block = parts.encoder_block(config, self.policy, name, drop_path_rate, relative)
            last_input = x
            x = block(x, **self.block_arguments)
            outputs.append(x)
        has_norm = config.final_norm and not config.norm_after_pooling
        norm = self._norm("encoder_norm") if has_norm else lambda x: x
        tokens = norm(x)  # [B, N, D]
        if numbers is not None:
            return [norm(outputs[number]) for number in numbers]
        if block is None or config.num_output_tokens is None:
            return tokens
        # The last block is called twice. The first call, above, computes all tokens for `get_layer(...).output`. The
        # model's output depends only on this second call, which computes only the tokens that the output needs.
        queries = FirstTokens(config.num_output_tokens, dtype=self.policy, name="read_tokens")(last_input)
        return norm(block(queries, context=last_input, **self.block_arguments))
