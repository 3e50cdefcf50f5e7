"""The Vision Transformer and its hybrids."""

import keras
import numpy as np

from keras_vit import _checks
from keras_vit.layers import (
    AddPositionEmbs,
    ClassToken,
    Dropout,
    EncoderBlock,
    FlattenGrid,
    GroupNorm,
    LayerNorm,
    MAPHead,
    PatchEncoder,
    PatchMeanPooling,
    RegisterTokens,
    ResNetStage,
    StdConv2D,
    TokenPooling,
    encoder,
    resnet,
)
from keras_vit.models.base import ConfiguredModel, head_layer, resolve_policy

POOLINGS = ("token", "gap", "map", None)
POSITION_EMBEDDINGS = ("learned", "learned2d", "sincos2d", "relative", "none")
POSITIONS_AT = ("input", "every_layer", "every_layer_shared")
_VARIABLE_SIZE_GRID = 224  # the published resolution, whose grid a model for images of any size stores


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionTransformer(ConfiguredModel):
    """Vision Transformer of any size, plain or behind a ResNet.

    A functional `keras.Model` from float images in [-1, 1], `[B, height, width, channels]`, to logits `[B, classes]`.
    Its layers have the reference's names: `embedding`, `cls`, `posembed_input`, `encoderblock_0` ..., `encoder_norm`,
    `pre_logits`, `head`, so that `model.get_layer("encoderblock_3").output` is what one expects.

    Args:
        patch_size: Patch edge in pixels, an integer or (height, width); for hybrids in cells of the ResNet's map.
        hidden_size: Width `D` of the tokens.
        num_layers: Number of encoder blocks.
        num_heads: Attention heads a block; must divide `hidden_size`.
        mlp_dim: Width of the MLPs' hidden layers.
        resnet_blocks: Units of each ResNet stage before the patches, `()` for the root alone, None for no ResNet.
        image_size: An integer, (height, width), or None for any multiple of the patch size at call time, with position
            embeddings resized on the fly (align-corners bilinear) from the grid of 224-pixel images.
        classes: Number of classes.
        include_top: Whether to end in the classification head; without it the output is the pooled representation.
        pooling: `"token"` (class token), `"gap"` (mean of the patches), `"map"` (attention pooling), None (all tokens).
        representation_size: Width of a dense layer with tanh before the head, or None for none.
        classifier_activation: Activation of the output, such as `"softmax"`, computed in float32; None for logits.
        dropout_rate: Dropout after the position embeddings and in the blocks.
        attention_dropout_rate: Dropout of single attention weights.
        drop_path_rate: Stochastic depth of the last block; rises linearly from 0 at the first.
        position_embedding: `"learned"`, `"learned2d"`, `"sincos2d"`, `"relative"` or `"none"` (appendix D.4).
        position_embedding_at: `"input"`, `"every_layer"` or `"every_layer_shared"` (appendix D.4).
        num_registers: Number of register tokens.
        activation: Activation of the MLPs: `"gelu_tanh"` (the reference), `"gelu"` (error function), `"quick_gelu"` or
            a name of `keras.activations`.
        name: Name of the model.
        dtype: A dtype policy or its name, such as `"mixed_bfloat16"`; None for the global policy.
        channels: Channels of the images.
        class_token: Whether there is a class token; None: where `pooling` is `"token"` or None.
        distillation_token: DeiT's second token with a head of its own; the logits are the mean of both heads'.
            `"unused"` for the token without a head: it takes part in the attention alone.
        layer_norm_epsilon: Epsilon of all layer norms.
        qkv_bias: Whether query, key and value have biases.
        layer_scale: Initial value of a learned scale of each residual branch, or None for none.
        norm_after_pooling: Whether the final norm follows the mean over patches instead of preceding it (timm's
            `fc_norm`).
        resnet_numerics: Epsilons of a hybrid's ResNet: `"reference"` or `"timm"`.
        head_bias: Initial bias of the head.
        remat: `"blocks"` to recompute each block's activations in the backward pass instead of keeping them.
        attention_chunk_size: Number of queries whose attention weights are there at a time, for long sequences; None
            for all at once. See `keras_vit.layers.SelfAttention`.

    Raises:
        ValueError: If an argument is out of range or two do not go together.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929)
        - [How to train your ViT?](https://arxiv.org/abs/2106.10270)
    """

    def __init__(
        self,
        patch_size=16,
        hidden_size=768,
        num_layers=12,
        num_heads=12,
        mlp_dim=3072,
        resnet_blocks=None,
        image_size=224,
        classes=1000,
        include_top=True,
        pooling="token",
        representation_size=None,
        classifier_activation=None,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        drop_path_rate=0.0,
        position_embedding="learned",
        position_embedding_at="input",
        num_registers=0,
        activation="gelu_tanh",
        name=None,
        dtype=None,
        *,
        channels=3,
        class_token=None,
        distillation_token=False,
        layer_norm_epsilon=1e-6,
        qkv_bias=True,
        layer_scale=None,
        norm_after_pooling=False,
        resnet_numerics="reference",
        head_bias=0.0,
        remat="none",
        attention_chunk_size=None,
    ):
        arguments = {key: value for key, value in locals().items() if key not in ("self", "name", "dtype", "__class__")}
        policy = resolve_policy(dtype)
        builder = _Builder(policy=policy, **arguments)
        images, outputs = builder.build()
        super().__init__(images, outputs, builder.arguments, name or "vision_transformer", policy)
        self._tokens_read = builder.tokens_read()

    def call(self, inputs, training=None, mask=None, **kwargs):
        """Runs the model. The last block computes only those tokens that the output is made of."""
        if self._tokens_read is None:
            return super().call(inputs, training=training, mask=mask, **kwargs)
        last_block = self.get_layer(f"encoderblock_{self._arguments['num_layers'] - 1}")
        with encoder.reading(last_block, self._tokens_read):
            return super().call(inputs, training=training, mask=mask, **kwargs)


class _Builder:
    """Checks the arguments and connects the layers; every step is a method."""

    def __init__(self, policy, **arguments):
        self.policy = policy
        self.arguments = arguments
        self.__dict__.update(arguments)
        self._check()

    def _check(self):
        self.patch_size = _checks.size_pair("patch_size", self.patch_size)
        for name in ("hidden_size", "num_heads", "mlp_dim", "channels"):
            setattr(self, name, _checks.positive_int(name, getattr(self, name)))
        for name in ("num_layers", "num_registers"):
            setattr(self, name, _checks.positive_int(name, getattr(self, name), minimum=0))
        if self.include_top:
            _checks.positive_int("classes", self.classes)
        if self.representation_size is not None:
            _checks.positive_int("representation_size", self.representation_size)
        for name in ("dropout_rate", "attention_dropout_rate", "drop_path_rate"):
            _checks.rate(name, getattr(self, name))
        _checks.divisible("hidden_size", self.hidden_size, "num_heads", self.num_heads)
        _checks.choice("pooling", self.pooling, POOLINGS)
        _checks.choice("position_embedding", self.position_embedding, POSITION_EMBEDDINGS)
        _checks.choice("position_embedding_at", self.position_embedding_at, POSITIONS_AT)
        _checks.choice("remat", self.remat, ("none", "blocks"))
        if self.position_embedding in ("relative", "none") and self.position_embedding_at != "input":
            raise ValueError(
                f"`position_embedding_at` applies to embeddings that are added to tokens. Received: "
                f"position_embedding={self.position_embedding!r} with position_embedding_at="
                f"{self.position_embedding_at!r}. Leave it at 'input'."
            )
        if self.position_embedding == "relative" and self.image_size is None:
            raise ValueError(
                "Relative position embeddings have one entry an offset and cannot be resized. Received: "
                "position_embedding='relative' with image_size=None. Give the `image_size`."
            )
        if self.attention_chunk_size is not None:
            _checks.positive_int("attention_chunk_size", self.attention_chunk_size)
        if self.attention_chunk_size and (self.attention_dropout_rate or self.position_embedding == "relative"):
            raise ValueError(
                "`attention_chunk_size` does not go with dropout of attention weights or relative positions. Received: "
                f"attention_chunk_size={self.attention_chunk_size}, attention_dropout_rate="
                f"{self.attention_dropout_rate}, position_embedding={self.position_embedding!r}. Leave it at None."
            )
        if self.class_token is None:
            self.class_token = self.pooling in ("token", None)
        if self.pooling == "token" and not self.class_token:
            raise ValueError("pooling='token' needs the class token. Received: class_token=False. Use pooling='gap'.")
        _checks.choice("distillation_token", self.distillation_token, (False, True, "unused"))
        if self.distillation_token and self.pooling != "token":
            raise ValueError(
                f"`distillation_token` needs pooling='token': DeiT reads both tokens. "
                f"Received: pooling={self.pooling!r}."
            )
        if self.norm_after_pooling and self.pooling != "gap":
            raise ValueError(
                f"`norm_after_pooling` needs pooling='gap'. Received: pooling={self.pooling!r}. "
                "Leave it off: the norm then precedes the pooling."
            )
        if self.resnet_blocks is not None:
            self.resnet_blocks = tuple(_checks.positive_int("resnet_blocks", n) for n in self.resnet_blocks)
            resnet.numerics(self.resnet_numerics)
        self._check_image_size()
        # What the model was really built with, in types that a JSON file keeps.
        self.arguments["patch_size"] = self._plain(self.patch_size)
        self.arguments["image_size"] = self._plain(self.image_size)
        if self.resnet_blocks is not None:
            self.arguments["resnet_blocks"] = list(self.resnet_blocks)

    @staticmethod
    def _plain(pair):
        return pair if pair is None else (pair[0] if pair[0] == pair[1] else list(pair))

    def _check_image_size(self):
        """Sets `image_size` to a pair or None and `grid` to the patch grid that the position table has."""
        reduction = 1 if self.resnet_blocks is None else 4 * 2 ** max(len(self.resnet_blocks) - 1, 0)
        if self.image_size is None:
            self.grid = tuple(max(_VARIABLE_SIZE_GRID // (reduction * patch), 1) for patch in self.patch_size)
            return
        self.image_size = _checks.size_pair("image_size", self.image_size)
        cells = tuple(-(-size // reduction) for size in self.image_size)  # "same" convolutions round up
        for cell, patch in zip(cells, self.patch_size, strict=True):
            if cell % patch:
                raise ValueError(
                    f"`image_size` must be a multiple of {'patch_size' if reduction == 1 else 'the stride'}="
                    f"{self._plain(tuple(reduction * p for p in self.patch_size))} in both dimensions. "
                    f"Received: image_size={self.image_size}."
                )
        self.grid = tuple(cell // patch for cell, patch in zip(cells, self.patch_size, strict=True))

    def build(self):
        """Returns the symbolic images and outputs."""
        height, width = self.image_size or (None, None)
        images = keras.Input((height, width, self.channels), dtype=self.policy.compute_dtype, name="images")
        x = self._resnet(images) if self.resnet_blocks is not None else images
        x = self._encode(self._patches(x))
        if not self.norm_after_pooling:
            x = LayerNorm(self.layer_norm_epsilon, dtype=self.policy, name="encoder_norm")(x)  # [B, L, D]
        return images, self._head(x)

    def _resnet(self, x):
        conv_arguments, norm_arguments = resnet.numerics(self.resnet_numerics)
        width = 64
        x = StdConv2D(width, 7, 2, dtype=self.policy, name="conv_root", **conv_arguments)(x)
        x = GroupNorm(dtype=self.policy, name="gn_root", **norm_arguments)(x)
        x = keras.layers.ReLU(dtype=self.policy, name="relu_root")(x)
        x = keras.layers.MaxPooling2D(3, 2, "same", data_format="channels_last", dtype=self.policy, name="pool_root")(x)
        for index, num_units in enumerate(self.resnet_blocks):
            x = ResNetStage(
                num_units,
                width * 2**index,
                strides=1 if index == 0 else 2,
                resnet_numerics=self.resnet_numerics,
                dtype=self.policy,
                name=f"block{index + 1}",
            )(x)
        return x

    def _patches(self, x):
        """Returns the tokens `[B, prefix + registers + h*w, D]` with positions added where they belong to the input."""
        grid = PatchEncoder(self.patch_size, self.hidden_size, flatten=False, dtype=self.policy, name="embedding")(x)
        x = FlattenGrid(dtype=self.policy, name="tokens")(grid)  # [B, h*w, D]
        if self.distillation_token:
            x = ClassToken(dtype=self.policy, name="dist")(x)
        if self.class_token:
            x = ClassToken(dtype=self.policy, name="cls")(x)
        self.prefix = int(self.class_token) + int(bool(self.distillation_token))
        # Only a model for images of any size reads the grid of the patches at call time.
        self.position_arguments = (grid,) if self.image_size is None else ()
        if self.position_embedding_at == "input" and self.position_embedding not in ("relative", "none"):
            x = self._add_positions("posembed_input", num_registers=0)(x, *self.position_arguments)
        if self.num_registers:
            x = RegisterTokens(self.num_registers, self.prefix, dtype=self.policy, name="registers")(x)
        if self.dropout_rate:
            x = Dropout(self.dropout_rate, dtype=self.policy, name="dropout_input")(x)
        return x

    def _add_positions(self, name, num_registers):
        return AddPositionEmbs(
            self.grid,
            self.position_embedding,
            num_prefix_tokens=self.prefix,
            num_registers=num_registers,
            dtype=self.policy,
            name=name,
        )

    def _encode(self, x):
        tokens = self.prefix + self.num_registers + self.grid[0] * self.grid[1]
        rates = np.linspace(0.0, self.drop_path_rate, max(self.num_layers, 1))
        shared = None
        if self.position_embedding_at == "every_layer_shared":
            shared = self._add_positions("posembed_shared", self.num_registers)
        for index in range(self.num_layers):
            if self.position_embedding_at != "input":
                add = shared or self._add_positions(f"posembed_layer_{index}", self.num_registers)
                x = add(x, *self.position_arguments)
            x = self._block(index, float(rates[index]), tokens)(x)
        return x

    def _block(self, index, drop_path_rate, tokens):
        return EncoderBlock(
            self.num_heads,
            self.mlp_dim,
            dropout_rate=self.dropout_rate,
            attention_dropout_rate=self.attention_dropout_rate,
            drop_path_rate=drop_path_rate,
            activation=self.activation,
            layer_norm_epsilon=self.layer_norm_epsilon,
            qkv_bias=self.qkv_bias,
            layer_scale=self.layer_scale,
            relative_positions=tokens if self.position_embedding == "relative" else None,
            remat=self.remat == "blocks",
            attention_chunk_size=self.attention_chunk_size,
            dtype=self.policy,
            name=f"encoderblock_{index}",
        )

    def tokens_read(self):
        """Returns how many of the last block's tokens the output is made of; None for all."""
        if self.pooling != "token" or not self.num_layers or self.position_embedding == "relative":
            return None
        return 2 if self.distillation_token is True else 1

    def _head(self, x):
        if self.pooling == "token":
            pooled = TokenPooling(0, dtype=self.policy, name="pool")(x)  # [B, D]
        elif self.pooling == "gap":
            pooled = PatchMeanPooling(self.prefix + self.num_registers, dtype=self.policy, name="pool")(x)
        elif self.pooling == "map":
            pooled = MAPHead(
                self.num_heads,
                self.mlp_dim,
                self.activation,
                self.layer_norm_epsilon,
                dtype=self.policy,
                name="MAPHead_0",
            )(x)
        else:
            pooled = x  # [B, L, D]
        if self.norm_after_pooling:
            pooled = LayerNorm(self.layer_norm_epsilon, dtype=self.policy, name="fc_norm")(pooled)
        both = self.distillation_token is True
        if both:
            distilled = TokenPooling(1, dtype=self.policy, name="pool_dist")(x)
        if self.representation_size is not None:
            pre_logits = keras.layers.Dense(
                self.representation_size,
                activation="tanh",
                kernel_initializer="lecun_normal",
                dtype=self.policy,
                name="pre_logits",
            )
            pooled = pre_logits(pooled)
            distilled = pre_logits(distilled) if both else None
        average = keras.layers.Average(dtype=self.policy, name="average")
        if not self.include_top:
            return average([pooled, distilled]) if both else pooled
        logits = head_layer(self.classes, self.head_bias, self.policy)(pooled)
        if both:
            head_dist = head_layer(self.classes, self.head_bias, self.policy, name="head_dist")
            logits = average([logits, head_dist(distilled)])
        if self.classifier_activation is not None:
            logits = keras.layers.Activation(self.classifier_activation, dtype="float32", name="predictions")(logits)
        return logits
