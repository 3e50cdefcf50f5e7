"""The masked autoencoder."""

import dataclasses
from typing import Any, ClassVar

import keras

from keras_vit.layers import Dense, FixedPositionEmbs, RestoredPatches, VisiblePatches
from keras_vit.models import parts
from keras_vit.models.arguments import configured_by, with_arguments
from keras_vit.models.base import images_input
from keras_vit.models.masked import NOT_OF_ENCODERS, MaskedConfig, MaskedModel
from keras_vit.models.vit import Builder
from keras_vit.models.vit_config import ViTConfig
from keras_vit.util import checks

# Arguments of the encoder that do not apply to the decoder. The decoder's blocks share all other arguments.
_NOT_OF_DECODER = (
    *("dropout_rate", "attention_dropout_rate", "drop_path_rate", "layer_scale", "head_dim", "output_projection"),
    *("attention_chunk_size", "hidden_size", "num_layers", "num_heads", "mlp_dim"),
)


@dataclasses.dataclass(frozen=True)
class MAEConfig(MaskedConfig):
    """Encoder arguments (see `ViTConfig`), decoder arguments and `mask_ratio` of `keras_vit.MaskedAutoencoder`.

    Args:
        mask_ratio: Fraction of the patches that are masked.
        decoder_hidden_size: Width of the decoder's tokens.
        decoder_num_layers: Number of decoder blocks.
        decoder_num_heads: Number of attention heads per decoder block. It must divide `decoder_hidden_size`.
        decoder_mlp_dim: Width of the hidden layers of the decoder's MLPs. None for four times `decoder_hidden_size`.
    """

    COMMON: ClassVar[tuple[str, ...]] = (
        *ViTConfig.COMMON,
        *("decoder_hidden_size", "decoder_num_layers", "decoder_num_heads", "decoder_mlp_dim"),
    )

    activation: str = "gelu"
    mask_ratio: float = 0.75
    decoder_hidden_size: int = 512
    decoder_num_layers: int = 8
    decoder_num_heads: int = 16
    decoder_mlp_dim: int | None = None

    def __post_init__(self):
        self._set("class_token", True)
        super().__post_init__()
        self._set("position_embedding", "learned")  # for the encoder; this model never trains the table
        for name in ("decoder_hidden_size", "decoder_num_heads"):
            self._set(name, checks.positive_int(name, getattr(self, name)))
        checks.positive_int("decoder_num_layers", self.decoder_num_layers, minimum=0)
        checks.divisible("decoder_hidden_size", self.decoder_hidden_size, "decoder_num_heads", self.decoder_num_heads)
        if self.decoder_mlp_dim is None:
            self._set("decoder_mlp_dim", 4 * self.decoder_hidden_size)
        self._set("decoder_mlp_dim", checks.positive_int("decoder_mlp_dim", self.decoder_mlp_dim))

    @property
    def decoder(self) -> ViTConfig:
        """Arguments of the decoder's blocks."""
        return ViTConfig(
            **{name: getattr(self, name) for name in ViTConfig.names() if name not in _NOT_OF_DECODER},
            hidden_size=self.decoder_hidden_size,
            num_layers=self.decoder_num_layers,
            num_heads=self.decoder_num_heads,
            mlp_dim=self.decoder_mlp_dim or 4 * self.decoder_hidden_size,
        )

    @property
    def num_visible(self) -> int:
        """Number of patches per image that the encoder receives."""
        return self.num_patches - self.num_masked


class _Builder(Builder):
    """Builder of an encoder of the visible patches and a decoder of all patches."""

    config: MAEConfig

    def build(self) -> tuple[Any, keras.KerasTensor]:
        config = self.config
        self.order = keras.Input((config.num_patches,), dtype="int32", name="order")
        images = images_input(config, self.policy)
        latent = self._blocks(self._tokens(images))  # [B, prefix + K, D]
        return [images, self.order], self._decoder(latent)

    @property
    def _prefix(self):
        return self.config.num_prefix_tokens + self.config.num_registers

    def _tokens(self, x):
        x = super()._tokens(x)  # [B, prefix + N, D]
        return VisiblePatches(self.config.num_visible, self._prefix, dtype=self.policy, name="visible")(x, self.order)

    def _add_positions(self, name, num_registers):
        return FixedPositionEmbs(self.config.grid, self.config.num_prefix_tokens, dtype=self.policy, name=name)

    def _decoder(self, latent):
        """Return the predicted pixels of all patches, `[B, N, pixels]`."""
        config, shared = self.config, {"dtype": self.policy}
        decoder = config.decoder
        x = Dense(decoder.hidden_size, name="decoder_embed", **shared)(latent)
        x = RestoredPatches(self._prefix, name="mask_token", **shared)(x, self.order)  # [B, prefix + N, decoder's D]
        x = FixedPositionEmbs(config.grid, self._prefix, name="decoder_posembed", **shared)(x)
        for index in range(decoder.num_layers):
            x = parts.encoder_block(decoder, self.policy, f"decoder_block_{index}")(x)
        x = self._norm("decoder_norm")(x)
        x = Dense(config.num_pixels, name="decoder_pred", **shared)(x)
        return x[:, self._prefix :]


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskedAutoencoder(MaskedModel):
    """Masked autoencoder (MAE): an encoder of the visible patches and a decoder that predicts the masked patches.

    A functional `keras.Model` from `[images, order]` to the predicted pixels of all patches, `[B, N, pixels]`. The
    pixels of a patch are in the order (row, column, channel). `order` contains the indices of each image's patches in
    random order, integers `[B, N]`. The encoder receives the first `config.num_visible` patches of `order`. The layers
    of the encoder have the same names as in `VisionTransformer`.

    Args:
        See `keras_vit.models.MAEConfig`.

    Raises:
        ValueError: If an argument is out of range, or two arguments exclude each other.
        TypeError: If an argument is unknown.

    References:
        - [Masked Autoencoders Are Scalable Vision Learners](https://arxiv.org/abs/2111.06377)

    Example:
    >>> model = keras_vit.MaskedAutoencoder(8, 32, 1, 4, 64, image_size=32, decoder_hidden_size=16)
    >>> model.output_shape
    (None, 16, 192)
    >>> model.encoder(classes=10, include_top=True).output_shape
    (None, 10)
    """

    @configured_by(MAEConfig)
    def __init__(self, config: MAEConfig):
        super().__init__(*_Builder(config).build(), config, "masked_autoencoder")


MaskedAutoencoder.__doc__ = with_arguments(
    MaskedAutoencoder.__doc__, MAEConfig, leave_out=(*NOT_OF_ENCODERS, "class_token", "position_embedding")
)
