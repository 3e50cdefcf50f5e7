"""Base class of pre-training models, which learn from unlabeled images with masked patches."""

import dataclasses
from typing import Any, ClassVar

import keras

from keras_vit.layers import CorruptedPatches, VisiblePatches
from keras_vit.models import heads
from keras_vit.models.base import ConfiguredModel
from keras_vit.models.vit import VisionTransformer
from keras_vit.models.vit_config import ViTConfig
from keras_vit.util import checks

# Arguments of `VisionTransformer` for which pre-training supports only one value.
_FIXED = {
    **{"resnet_blocks": None, "distillation_token": False, "position_embedding_at": "input", "input_range": None},
    "final_norm": True,
}
NOT_OF_ENCODERS = (*ViTConfig.OF_HEAD, *_FIXED, "resnet_numerics")


@dataclasses.dataclass(frozen=True)
class MaskedConfig(ViTConfig):
    """Arguments of a pre-training model; the base class of `MAEConfig` and `MaskedPatchConfig`.

    Args:
        mask_ratio: Fraction of the patches that are hidden.
    """

    FREE: ClassVar[tuple[str, ...]] = (*ViTConfig.FREE, "mask_ratio")

    mask_ratio: float = 0.5

    def __post_init__(self):
        if self.class_token is None:
            self._set("class_token", self.pooling not in ("gap", "map"))
        defaults = {field.name: field.default for field in dataclasses.fields(ViTConfig)}
        without_head = {"pooling": None, "include_top": False, "classes": None}
        for name in self.OF_HEAD:
            self._set(name, without_head.get(name, defaults[name]))
        super().__post_init__()
        for name, value in _FIXED.items():
            wrong = getattr(self, name) != value
            self._refuse(wrong, f"Pre-training on masked patches needs {name}={value!r}.", name)
        rotary = self.position_embedding == "rope2d"
        self._refuse(rotary, "Pre-training on masked patches cannot use rotary positions.", "position_embedding")
        self._refuse(self.image_size is None, "Pre-training on masked patches needs an `image_size`.", "image_size")
        self._set("mask_ratio", checks.rate("mask_ratio", self.mask_ratio))
        self._refuse(
            not 0 < self.num_masked < self.num_patches,
            f"`mask_ratio` must hide at least one of the {self.num_patches} patches, but not all.",
            "mask_ratio",
        )

    @property
    def num_patches(self) -> int:
        """Number of patches per image."""
        return self.grid[0] * self.grid[1]

    @property
    def num_masked(self) -> int:
        """Number of masked patches per image."""
        return self.num_patches - int(self.num_patches * (1 - self.mask_ratio))

    @property
    def patch_shape(self) -> tuple[int, int, int]:
        """Shape of a patch, (height, width, channels)."""
        return (*self.stride, self.channels)

    @property
    def num_pixels(self) -> int:
        """Number of pixel values per patch, over all channels."""
        height, width, channels = self.patch_shape
        return height * width * channels

    def encoder_arguments(self) -> dict[str, Any]:
        """Return the encoder's arguments for a `VisionTransformer` without a head."""
        values = {name: value for name, value in self.to_dict().items() if name in ViTConfig.names()}
        values["pooling"] = "token" if self.class_token else "gap"
        return {**values, "name": None, "dtype": None}


class MaskedModel(ConfiguredModel):
    """Pre-training model with a `VisionTransformer` encoder. The inputs are images and patch indices."""

    config: MaskedConfig

    def _checked(self, inputs):
        if not isinstance(inputs, (list, tuple)) or len(inputs) != 2:
            raise ValueError(
                f"{type(self).__name__} takes [images, indices of the patches]. Received: {type(inputs).__name__}. For "
                "images without masked patches, call the model that `encoder()` returns."
            )
        return [super()._checked(inputs[0]), inputs[1]]

    @property
    def encoder_layers(self) -> list[keras.layers.Layer]:
        """Layers of the encoder, except those that hide patches. Each layer takes the previous layer's output."""
        end = [layer.name for layer in self.layers].index("encoder_norm") + 1
        hiding = (keras.layers.InputLayer, VisiblePatches, CorruptedPatches)
        return [layer for layer in self.layers[:end] if not isinstance(layer, hiding)]

    def encoder(self, **arguments: Any) -> VisionTransformer:
        """Return the encoder as a separate model with a copy of the weights.

        Args:
            **arguments: Overrides of the encoder's arguments, such as `pooling`, `classes` with `include_top=True`,
                `head` or `drop_path_rate`. Overrides must not change the shape of a weight.

        Raises:
            ValueError: If the encoder's weights do not match the arguments.
        """
        own = {**self.config.encoder_arguments(), "dtype": self.dtype_policy}
        model = VisionTransformer(**{**(ViTConfig.of_encoder(own) if "head" in arguments else own), **arguments})
        model.input_normalization = self.input_normalization
        model.resizing = self.resizing
        own = {weight.path: weight for weight in self.variables}
        of_head = heads.variable_prefixes(model.config.head)
        for weight in model.variables:
            if weight.path in own and weight.shape == own[weight.path].shape:
                weight.assign(own[weight.path])
            elif not weight.path.startswith(of_head) and not weight.path.endswith("seed_generator_state"):
                raise ValueError(f"The encoder has no weight {weight.path} of shape {tuple(weight.shape)}.")
        return model
