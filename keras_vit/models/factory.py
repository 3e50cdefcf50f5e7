"""Models by name."""

import dataclasses

from keras_vit import _checks
from keras_vit.models.bit import BiTResNet
from keras_vit.models.configs import BIT, VIT
from keras_vit.models.vit import VisionTransformer


def list_models():
    """Returns the names that `create_model` knows, such as `"ViT-B/16"`, `"R50+ViT-B/16"` and `"BiT-R50x1"`."""
    return [*VIT, *BIT]


def layer_safe_name(name):
    """Returns a model's name in the form that Keras allows, such as `vit_b16` and `r50_vit_b16`."""
    return name.lower().replace("/", "").replace("-", "_").replace("+", "_")


def create_model(name, **arguments):
    """Builds a model of the family by name.

    Args:
        name: One of `list_models()`.
        **arguments: Arguments of `VisionTransformer` or `BiTResNet`; they take precedence over the variant's own.

    Returns:
        A `VisionTransformer` or a `BiTResNet`, freshly initialised.

    Raises:
        ValueError: If the name is unknown or an argument is wrong.
    """
    config = VIT.get(name) or BIT.get(name)
    if config is None:
        raise ValueError(
            f"There is no model named {name!r}.{_checks.nearest(name, list_models())} "
            f"Known names: {', '.join(list_models())}."
        )
    arguments = {"name": layer_safe_name(name), **dataclasses.asdict(config), **arguments}
    model_class = VisionTransformer if name in VIT else BiTResNet
    try:
        return model_class(**arguments)
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        unknown = str(error).rsplit("'", 2)[-2]
        known = [key for key in model_class.__init__.__annotations__] or model_class.__init__.__code__.co_varnames
        raise ValueError(
            f"{model_class.__name__} has no argument `{unknown}`.{_checks.nearest(unknown, known)}"
        ) from error
