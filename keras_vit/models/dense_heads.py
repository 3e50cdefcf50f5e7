"""Segmentation heads: layers for the argument `head` of a Vision Transformer."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers import Dense
from keras_vit.layers.base import CompositeLayer
from keras_vit.util import checks


class Segmenter(CompositeLayer):
    """Base class of segmentation heads, which map the patches after one or more blocks to logits on a grid."""

    def __init__(
        self,
        classes: int,
        blocks: Sequence[int] | None = None,
        dropout_rate: float = 0.0,
        name: str = "head",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        self.classes = checks.positive_int("classes", classes)
        numbers = None if blocks is None else checks.sequence("blocks", blocks, "integers, such as (2, 5, 8, 11)")
        self.blocks = None if numbers is None else tuple(numbers)
        self.dropout_rate = checks.rate("dropout_rate", dropout_rate)

    def build(self, tokens_shape: Any, **shapes: Any) -> None:
        width = sum(shape[-1] for shape in (tokens_shape if self.blocks else [tokens_shape]))
        self.dropout = keras.layers.SpatialDropout2D(
            self.dropout_rate, data_format="channels_last", dtype=self.dtype_policy, name="dropout"
        )
        self.build_layers(width)
        super().build()

    def build_layers(self, width: int) -> None:
        """Build the sublayers for patches `[B, h, w, width]`."""
        raise NotImplementedError

    def call(self, tokens: Any, grid: Any, training: bool = False) -> Any:
        x = ops.concatenate(grid, axis=-1) if self.blocks else grid  # [B, h, w, D]
        return self.logits(self.dropout(x, training=training), training)

    def logits(self, x: Any, training: bool) -> Any:
        """Return the logits for patches `[B, h, w, D]`."""
        raise NotImplementedError

    def dense(self, name: str, units: int) -> keras.layers.Layer:
        """Create a dense layer, equivalent to a 1 x 1 convolution, with mmsegmentation's initializer."""
        normal = keras.initializers.RandomNormal(stddev=0.01)
        return Dense(units, kernel_initializer=normal, dtype=self.dtype_policy, name=name)


@keras.saving.register_keras_serializable(package="keras_vit")
class LinearSegmenter(Segmenter):
    """Segmentation head of DINOv2 and DINOv3 for frozen features: batch norm and a linear layer.

    Args:
        classes: Number of classes.
        blocks: Indices of the blocks whose patches are concatenated, or None for the last block. Negative indices count
            from the end. The model's final norm is applied to the patches of each block.
        dropout_rate: Probability in [0, 1) of dropping a whole channel of an image. DINOv3 uses 0.1.
        name: Name of the layer.

    Call arguments:
        tokens: Tokens of the encoder, which are ignored.
        grid: Patches `[B, h, w, D]`, or with `blocks` a list of such tensors. The result is `[B, h, w, classes]`.
        training: Whether to drop channels and normalize with batch statistics.

    References:
        - [DINOv2](https://arxiv.org/abs/2304.07193), section 7.4
        - [DINOv3](https://arxiv.org/abs/2508.10104), section 6.1

    Example:
    >>> head = LinearSegmenter(21, blocks=(-4, -3, -2, -1))
    >>> model = keras_vit.ViT_Ti16(image_size=64, head=head)
    >>> model.output_shape
    (None, 4, 4, 21)
    """

    def build_layers(self, width: int) -> None:
        self.norm = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, dtype=self.dtype_policy, name="norm")
        self.norm.build((None, None, None, width))
        self.classifier = self.dense("classifier", self.classes)
        self.classifier.build((None, None, None, width))

    def logits(self, x: Any, training: bool) -> Any:
        return self.classifier(self.norm(x, training=training))  # [B, h, w, classes]


@keras.saving.register_keras_serializable(package="keras_vit")
class UpsampleSegmenter(Segmenter):
    """Segmentation head: transposed convolutions, each of which doubles the resolution, and a linear layer.

    Args:
        classes: Number of classes.
        blocks: Indices of the blocks whose patches are concatenated, or None for the last block. Negative indices count
            from the end. The model's final norm is applied to the patches of each block.
        dropout_rate: Probability in [0, 1) of dropping a whole channel of an image.
        width: Width of the dense layer before the convolutions. Each convolution halves the width.
        stages: Number of transposed convolutions.
        name: Name of the layer.

    Call arguments:
        tokens: Tokens of the encoder, which are ignored.
        grid: Patches `[B, h, w, D]`, or with `blocks` a list of such tensors. The result is
            `[B, 2**stages h, 2**stages w, classes]`.
        training: Whether to drop channels.

    Example:
    >>> model = keras_vit.ViT_Ti16(image_size=64, head=UpsampleSegmenter(21))
    >>> model.output_shape
    (None, 16, 16, 21)
    """

    def __init__(
        self,
        classes: int,
        blocks: Sequence[int] | None = None,
        dropout_rate: float = 0.0,
        width: int = 256,
        stages: int = 2,
        name: str = "head",
        **kwargs: Any,
    ):
        super().__init__(classes, blocks, dropout_rate, name, **kwargs)
        self.stages = checks.positive_int("stages", stages)
        self.width = checks.divisible("width", width, "2**stages", 2**stages)

    @property
    def widths(self) -> list[int]:
        """Width before the first convolution and after each convolution."""
        return [self.width >> stage for stage in range(self.stages + 1)]

    def build_layers(self, width: int) -> None:
        shared: Any = {"dtype": self.dtype_policy}
        self.projection = Dense(self.width, name="projection", **shared)
        self.projection.build((None, None, None, width))
        # A kernel size divisible by the stride covers all positions equally often and avoids checkerboard artifacts.
        options: Any = {"kernel_size": 4, "strides": 2, "padding": "same", "data_format": "channels_last", **shared}
        self.convolutions, self.norms = [], []
        for stage, (before, after) in enumerate(zip(self.widths, self.widths[1:], strict=False)):
            self.convolutions.append(keras.layers.Conv2DTranspose(after, name=f"convolution_{stage}", **options))
            self.convolutions[-1].build((None, None, None, before))
            self.norms.append(keras.layers.LayerNormalization(epsilon=1e-6, name=f"norm_{stage}", **shared))
            self.norms[-1].build((None, None, None, after))
        self.classifier = self.dense("classifier", self.classes)
        self.classifier.build((None, None, None, self.widths[-1]))

    def logits(self, x: Any, training: bool) -> Any:
        x = self.projection(x)  # [B, h, w, width]
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = ops.gelu(norm(convolution(x)))  # [B, 2 h, 2 w, width / 2]
        return self.classifier(x)


HEADS = {"linear": LinearSegmenter, "upsample": UpsampleSegmenter}
