"""Models by name."""

import dataclasses
import re
from typing import Any

from keras_vit import _checks
from keras_vit.models.arguments import check_names
from keras_vit.models.bit import BiTConfig, BiTResNet
from keras_vit.models.variants import BIT, VIT
from keras_vit.models.vit import VisionTransformer
from keras_vit.models.vit_config import ViTConfig


def list_models() -> list[str]:
    """Return the names of all models that `create_model` can build.

    Example:
    >>> list_models()[:3]
    ['ViT-Ti/16', 'ViT-S/32', 'ViT-S/16']
    """
    return [*VIT, *BIT]


def layer_safe_name(name: str) -> str:
    """Convert the name of a model to a valid Keras name, such as `vit_b16` or `r50_vit_b16`."""
    return name.lower().replace("/", "").replace("-", "_").replace("+", "_")


def constructor_name(variant: str) -> str:
    """Return the name of a variant's constructor, such as `ViT_B16` for `"ViT-B/16"`.

    Example:
    >>> constructor_name("R50+ViT-B/16"), constructor_name("ViT-giant2/14"), constructor_name("ViT-S+/16")
    ('R50_B16', 'ViT_giant2_14', 'ViT_Splus16')
    """
    name = variant.replace("+ViT-", "_").replace("-", "_").replace("+", "plus")
    return re.sub(r"(\d?)/", lambda match: f"{match[1]}_" if match[1] else "", name)


def full_name(model: str) -> str:
    """Return the variant name for a variant name or the name of its constructor."""
    model = {constructor_name(name): name for name in list_models()}.get(model, model)
    if model not in list_models():
        hint = _checks.nearest(model, list_models())
        raise ValueError(f"There is no model named {model!r}.{hint} Known names: {', '.join(list_models())}.")
    return model


def create_model(variant: str, **arguments: Any) -> VisionTransformer | BiTResNet:
    """Build a model by the name of its variant.

    Args:
        variant: A name from `list_models()`, such as `"ViT-B/16"`, or the name of its constructor, such as `"ViT_B16"`.
        **arguments: Arguments of `VisionTransformer` or `BiTResNet`, which override the sizes of the variant.

    Returns:
        A randomly initialized `VisionTransformer` or `BiTResNet`.

    Raises:
        ValueError: If the variant or an argument is unknown, or an argument is invalid.

    Example:
    >>> model = create_model("ViT-Ti/16", image_size=32, classes=10)
    >>> model.output_shape
    (None, 10)
    """
    variant = full_name(variant)
    sizes = VIT.get(variant) or BIT[variant]
    check_names("create_model", arguments, (ViTConfig if variant in VIT else BiTConfig).names(), ValueError)
    arguments = {"name": layer_safe_name(variant), **dataclasses.asdict(sizes), **arguments}
    return (VisionTransformer if variant in VIT else BiTResNet)(**arguments)
