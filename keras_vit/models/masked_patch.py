"""Masked patch prediction."""

import dataclasses
import math
from typing import Any, Literal

import keras

from keras_vit.layers import CorruptedPatches, Dense
from keras_vit.models.arguments import configured_by, with_arguments
from keras_vit.models.base import images_input
from keras_vit.models.masked import NOT_OF_ENCODERS, MaskedConfig, MaskedModel
from keras_vit.models.vit import Builder

LEVELS = 8  # 3 bits per channel
SMALL = 4  # height and width of the downsized patch


@dataclasses.dataclass(frozen=True)
class MaskedPatchConfig(MaskedConfig):
    """Encoder arguments (see `ViTConfig`), `mask_ratio` and `target` of `keras_vit.MaskedPatchPredictor`.

    Args:
        mask_ratio: Fraction of the patches that are corrupted and predicted.
        target: Prediction for each patch: `"mean_color"` (the mean color in 3 bits per channel, as one class),
            `"colors_4x4"` (the colors of the patch downsized to 4 x 4, as 16 classes) or `"pixels"` (all pixels).
    """

    target: Literal["mean_color", "colors_4x4", "pixels"] = "mean_color"

    @property
    def num_colors(self) -> int:
        """Number of colors with 3 bits per channel."""
        return LEVELS**self.channels

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the prediction for one patch: `(predictions, colors)` or `(pixels,)`."""
        if self.target == "pixels":
            return (self.num_pixels,)
        return (SMALL**2 if self.target == "colors_4x4" else 1, self.num_colors)


class _Builder(Builder):
    """Builder of an encoder of corrupted patches, followed by a dense layer."""

    config: MaskedPatchConfig

    def build(self) -> tuple[Any, keras.KerasTensor]:
        config = self.config
        self.sources = keras.Input((config.num_patches,), dtype="int32", name="sources")
        images = images_input(config, self.policy)
        x = self._blocks(self._tokens(images))[:, config.num_prefix_tokens + config.num_registers :]  # [B, N, D]
        x = Dense(math.prod(config.output_shape), dtype=self.policy, name="patch_head")(x)
        x = keras.layers.Reshape((config.num_patches, *config.output_shape), dtype=self.policy, name="predictions")(x)
        return [images, self.sources], x

    def _patches(self, x):
        return CorruptedPatches(dtype=self.policy, name="mask_token")(x, self.sources)


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskedPatchPredictor(MaskedModel):
    """Masked patch prediction: an encoder that receives corrupted patches and predicts the original patches.

    A functional `keras.Model` from `[images, sources]` to predictions for all patches, `[B, N, predictions, colors]` or
    `[B, N, pixels]`. `sources` contains the index of the embedding to use for each patch, or -1 for the mask token,
    integers `[B, N]`. The encoder's layers have the same names as in `VisionTransformer`.

    Args:
        See `keras_vit.models.MaskedPatchConfig`.

    Raises:
        ValueError: If an argument is out of range, or two arguments exclude each other.
        TypeError: If an argument is unknown.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), appendix B.1.2

    Example:
    >>> model = keras_vit.MaskedPatchPredictor(8, 32, 1, 4, 64, image_size=32)
    >>> model.output_shape
    (None, 16, 1, 512)
    """

    @configured_by(MaskedPatchConfig)
    def __init__(self, config: MaskedPatchConfig):
        super().__init__(*_Builder(config).build(), config, "masked_patch_predictor")


MaskedPatchPredictor.__doc__ = with_arguments(
    MaskedPatchPredictor.__doc__, MaskedPatchConfig, leave_out=NOT_OF_ENCODERS
)
