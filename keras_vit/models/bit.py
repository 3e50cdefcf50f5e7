"""BiT, the ResNet baseline of the paper."""

import keras

from keras_vit import _checks
from keras_vit.layers import BiTRoot, BiTStage, GroupNorm
from keras_vit.models.base import ConfiguredModel, head_layer, resolve_policy


@keras.saving.register_keras_serializable(package="keras_vit")
class BiTResNet(ConfiguredModel):
    """Pre-activation ResNet with group norm and weight standardisation.

    A functional `keras.Model` from float images in [-1, 1], `[B, height, width, channels]`, to logits `[B, classes]`.

    Args:
        block_sizes: Units of each stage.
        width_factor: Multiple of ResNet's channels.
        image_size: An integer, (height, width), or None for any size.
        classes: Number of classes.
        include_top: Whether to end in the classification head; without it the output is the mean of the last map.
        classifier_activation: Activation of the head's output, computed in float32; None for logits.
        name: Name of the model.
        dtype: A dtype policy or its name; None for the global policy.
        channels: Channels of the images.
        head_bias: Initial bias of the head.
        pool_padding: Border of the root's max-pooling, `"infinity"`, `"zeros"` or `"edge"`; see
            `keras_vit.layers.BiTRoot`.

    Raises:
        ValueError: If an argument is out of range.

    References:
        - [Big Transfer (BiT): General Visual Representation Learning](https://arxiv.org/abs/1912.11370)
    """

    def __init__(
        self,
        block_sizes=(3, 4, 6, 3),
        width_factor=1,
        image_size=224,
        classes=1000,
        include_top=True,
        classifier_activation=None,
        name=None,
        dtype=None,
        *,
        channels=3,
        head_bias=0.0,
        pool_padding="infinity",
    ):
        policy = resolve_policy(dtype)
        block_sizes = [_checks.positive_int("block_sizes", n) for n in block_sizes]
        _checks.positive_int("width_factor", width_factor)
        _checks.positive_int("channels", channels)
        if include_top:
            _checks.positive_int("classes", classes)
        size = (None, None) if image_size is None else _checks.size_pair("image_size", image_size)

        images = keras.Input((*size, channels), dtype=policy.compute_dtype, name="images")
        width = 64 * width_factor
        x = BiTRoot(width, pool_padding, dtype=policy, name="root_block")(images)
        for index, num_units in enumerate(block_sizes):
            strides = 1 if index == 0 else 2
            x = BiTStage(num_units, width * 2**index, strides, dtype=policy, name=f"block{index + 1}")(x)
        x = GroupNorm(epsilon=1e-5, dtype=policy, name="norm-pre-head")(x)
        x = keras.layers.ReLU(dtype=policy, name="relu_pre_head")(x)
        x = keras.layers.GlobalAveragePooling2D(data_format="channels_last", dtype=policy, name="pool")(x)
        if include_top:
            x = head_layer(classes, head_bias, policy)(x)
            if classifier_activation is not None:
                x = keras.layers.Activation(classifier_activation, dtype="float32", name="predictions")(x)
        arguments = {
            "block_sizes": block_sizes,
            "width_factor": width_factor,
            "image_size": None if image_size is None else (size[0] if size[0] == size[1] else list(size)),
            "classes": classes,
            "include_top": include_top,
            "classifier_activation": classifier_activation,
            "channels": channels,
            "head_bias": head_bias,
            "pool_padding": pool_padding,
        }
        super().__init__(images, x, arguments, name or "bit_resnet", policy)
