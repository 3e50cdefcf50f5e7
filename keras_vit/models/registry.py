"""Models by name."""

import dataclasses
from typing import Any

from keras_vit.models.arguments import check_names
from keras_vit.models.bit import BiTConfig, BiTResNet
from keras_vit.models.vit import VisionTransformer
from keras_vit.models.vit_config import ViTConfig
from keras_vit.zoo.variants import BIT, VIT, full_name


def layer_safe_name(name: str) -> str:
    """Convert the name of a model to a valid Keras name, such as `vit_b16` or `r50_vit_b16`."""
    return name.lower().replace("/", "").replace("-", "_").replace("+", "_")


def build_variant(variant: str, **arguments: Any) -> VisionTransformer | BiTResNet:
    """Build a model by the name of its variant.

    Args:
        variant: A name from `list_models()`, such as `"ViT-B/16"`, or the name of its constructor, such as `"ViT_B16"`.
        **arguments: Arguments of `VisionTransformer` or `BiTResNet`, which override the sizes of the variant.

    Returns:
        A randomly initialized `VisionTransformer` or `BiTResNet`.

    Raises:
        ValueError: If the variant or an argument is unknown, or an argument is invalid.

    Example:
    >>> model = build_variant("ViT-Ti/16", image_size=32, classes=10)
    >>> model.output_shape
    (None, 10)
    """
    variant = full_name(variant)
    sizes = VIT.get(variant) or BIT[variant]
    check_names("create_model", arguments, (ViTConfig if variant in VIT else BiTConfig).names(), ValueError)
    arguments = {"name": layer_safe_name(variant), **dataclasses.asdict(sizes), **arguments}
    return (VisionTransformer if variant in VIT else BiTResNet)(**arguments)
