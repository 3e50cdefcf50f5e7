"""Arguments of Vision Transformers: their checks, and every fact that follows from them."""

import dataclasses
from typing import ClassVar

import numpy as np

from keras_vit import _checks
from keras_vit.layers import get_activation, position
from keras_vit.models import geometry
from keras_vit.models.config import Config, plain
from keras_vit.models.variants import ViTVariant
from keras_vit.models.vit_options import ViTOptions


@dataclasses.dataclass(frozen=True)
class ViTConfig(ViTOptions, Config, ViTVariant):
    """Arguments of `keras_vit.VisionTransformer`, and the facts that follow from them.

    Raises:
        ValueError: If an argument is out of range, or two arguments exclude each other.

    Example:
    >>> config = ViTConfig(patch_size=16, image_size=384)
    >>> config.grid, config.num_tokens, config.class_token
    ((24, 24), 577, True)
    """

    COMMON: ClassVar[tuple[str, ...]] = (
        *Config.COMMON,
        *("patch_size", "hidden_size", "num_layers", "num_heads", "mlp_dim", "class_token"),
    )
    FREE: ClassVar[tuple[str, ...]] = (
        *Config.FREE,
        *("dropout_rate", "attention_dropout_rate", "drop_path_rate", "remat", "attention_chunk_size"),
        *("position_grid", "position_resizing"),
    )
    # Arguments of everything after the encoder, which a model that is pre-trained without labels does not have.
    OF_HEAD: ClassVar[tuple[str, ...]] = (
        *("classes", "include_top", "pooling", "representation_size", "classifier_activation", "head_bias"),
        *("norm_after_pooling", "pool_prefix_tokens", "head_norm"),
    )

    def __post_init__(self):
        if self.pooling in ("avg", "average", "mean", "max"):
            raise ValueError(
                f"`pooling` must be 'gap' for the mean of the patches. Received: pooling={self.pooling!r}."
            )
        super().__post_init__()
        self._set("patch_size", plain(_checks.size_pair("patch_size", self.patch_size)))
        for name in ("hidden_size", "num_heads", "mlp_dim"):
            self._set(name, _checks.positive_int(name, getattr(self, name)))
        for name in ("num_layers", "num_registers"):
            self._set(name, _checks.positive_int(name, getattr(self, name), minimum=0))
        for name in ("representation_size", "attention_chunk_size", "head_dim"):
            if getattr(self, name) is not None:
                self._set(name, _checks.positive_int(name, getattr(self, name)))
        for name in ("dropout_rate", "attention_dropout_rate", "drop_path_rate", "layer_norm_epsilon"):
            self._set(name, _checks.rate(name, getattr(self, name)))
        if self.layer_scale is not None:
            self._set("layer_scale", _checks.finite_number("layer_scale", self.layer_scale, zero=True))
        get_activation(self.activation)
        if self.resnet_blocks is not None:
            units = _checks.sequence("resnet_blocks", self.resnet_blocks, "integers, the units of each stage")
            self._set("resnet_blocks", tuple(_checks.positive_int("resnet_blocks", n) for n in units))
        self._resolve()
        if self.head_dim is None or self.pooling == "map":
            _checks.divisible("hidden_size", self.hidden_size, "num_heads", self.num_heads)
        self._check_combinations()
        _ = self.grid  # the image must be a whole number of patches

    def _resolve(self):
        """Replace values that depend on other arguments, so that equal models have equal configurations."""
        if self.class_token is None:
            self._set("class_token", self.pooling in ("token", None))
        if self.head_dim is not None and self.head_dim * self.num_heads == self.hidden_size:
            self._set("head_dim", None)
        if not self.include_top:
            self._set("head_norm", False)
        if self.position_grid is not None:
            grid = plain(_checks.size_pair("position_grid", self.position_grid))
            self._set("position_grid", grid if self.image_size is None else None)

    def _check_combinations(self):
        self._refuse(
            self.head_dim is not None and self.output_projection == "none",
            "output_projection='none' needs num_heads * head_dim == hidden_size.",
            ("num_heads", "head_dim", "hidden_size"),
        )
        self._refuse(
            self.pooling == "token" and not self.class_token,
            "pooling='token' needs the class token.",
            ("class_token",),
            "Use pooling='gap'.",
        )
        self._refuse(
            bool(self.distillation_token) and self.pooling != "token",
            "`distillation_token` needs pooling='token': DeiT reads both tokens.",
            ("pooling",),
        )
        self._refuse(
            self.head_norm and (self.pooling is None or bool(self.distillation_token)),
            "`head_norm` needs a head on one vector per image.",
            ("pooling", "distillation_token"),
            "Leave it off.",
        )
        for name in ("norm_after_pooling", "pool_prefix_tokens"):
            self._refuse(
                getattr(self, name) and self.pooling != "gap",
                f"`{name}` needs pooling='gap'.",
                ("pooling",),
                "Leave it off.",
            )
        self._refuse(
            not self.has_position_table and self.position_embedding_at != "input",
            "`position_embedding_at` applies to embeddings that are added to tokens.",
            ("position_embedding", "position_embedding_at"),
            "Leave it at 'input'.",
        )
        self._refuse(
            self.position_embedding == "relative" and self.image_size is None,
            "Relative position embeddings have one entry per offset and cannot be resized.",
            ("position_embedding", "image_size"),
            "Give the `image_size`.",
        )
        self._refuse(
            bool(self.attention_chunk_size and (self.attention_dropout_rate or self.position_embedding == "relative")),
            "`attention_chunk_size` excludes dropout of attention weights and relative positions.",
            ("attention_chunk_size", "attention_dropout_rate", "position_embedding"),
            "Leave it at None.",
        )

    @property
    def stride(self) -> tuple[int, int]:
        """Pixels per patch, (height, width)."""
        return geometry.stride(self.patch_size, self.resnet_blocks)

    @property
    def grid(self) -> tuple[int, int]:
        """Grid of patches, (height, width), of the model's images; of the position table where these have any size."""
        return geometry.grid(self.patch_size, self.resnet_blocks, self.image_size, self.position_grid)

    @property
    def num_prefix_tokens(self) -> int:
        """Number of tokens with a position before the patches: class and distillation token."""
        return int(bool(self.class_token)) + int(bool(self.distillation_token))

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the sequence, at the model's grid: prefix tokens, registers and patches."""
        return self.num_prefix_tokens + self.num_registers + self.grid[0] * self.grid[1]

    @property
    def num_output_tokens(self) -> int | None:
        """Number of first tokens that the output depends on after the last block; None for all of them."""
        if self.pooling != "token" or self.position_embedding == "relative":
            return None
        return 2 if self.distillation_token is True else 1

    @property
    def has_position_table(self) -> bool:
        """Whether position embeddings are added to the tokens."""
        return self.position_embedding in position.KINDS

    @property
    def num_position_entries(self) -> int:
        """Number of rows of a learned 1-D position table: prefix tokens and patches. 0 for other embeddings."""
        return self.num_prefix_tokens + self.grid[0] * self.grid[1] if self.position_embedding == "learned" else 0

    @property
    def attention_size(self) -> int:
        """Width of all heads of an attention together."""
        return self.hidden_size if self.head_dim is None else self.num_heads * self.head_dim

    @property
    def drop_path_rates(self) -> tuple[float, ...]:
        """Stochastic depth rate of each block."""
        return tuple(float(rate) for rate in np.linspace(0.0, self.drop_path_rate, self.num_layers))

    @property
    def num_features(self) -> int:
        """Width of the input of the head."""
        return self.hidden_size if self.representation_size is None else self.representation_size
