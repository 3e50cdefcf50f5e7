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
    """Build a randomly initialized model by the name of its variant or constructor. `arguments` override its sizes."""
    variant = full_name(variant)
    sizes = VIT.get(variant) or BIT[variant]
    check_names("create_model", arguments, (ViTConfig if variant in VIT else BiTConfig).names(), ValueError)
    arguments = {"name": layer_safe_name(variant), **dataclasses.asdict(sizes), **arguments}
    return (VisionTransformer if variant in VIT else BiTResNet)(**arguments)
