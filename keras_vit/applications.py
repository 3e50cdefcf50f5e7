"""Published variants as constructors, in the manner of `keras.applications`."""

import inspect
import os
import textwrap
from typing import Any, cast

from keras_vit import zoo
from keras_vit.models import (
    VIT,
    BiTConfig,
    BiTResNet,
    VisionTransformer,
    ViTConfig,
    constructor_name,
    create_model,
)
from keras_vit.models.arguments import argument_docs, bind
from keras_vit.models.constructors import BiTConstructor, ViTConstructor

_DOCSTRING = """Build {variant}, with random or published weights.

    A functional `keras.Model` from float images in [-1, 1], `[B, height, width, channels]`, to logits `[B, classes]`.

    Args:
        weights: None for random initial values, the path of a checkpoint, or one of the names that
            `keras_vit.list_weights({variant!r})` returns. Published weights are downloaded once to Keras' cache.
            Position embeddings are resized to the grid of the model. A head for another number of classes keeps its
            initial values.
{arguments}

    Published weights:
{weights}

    Returns:
        A `keras_vit.{model_class}`.

    Raises:
        ValueError: If an argument is out of range, or the checkpoint does not fit the model.
        TypeError: If there is no such argument.

    References:
        - [{title}]({url})

    Example:

    ```python
    model = keras_vit.{name}(classes=10, image_size=384)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    ```
    """
_VIT_PAPER = (
    "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
    "https://arxiv.org/abs/2010.11929",
)
_BIT_PAPER = "Big Transfer (BiT): General Visual Representation Learning", "https://arxiv.org/abs/1912.11370"

# Arguments that published weights decide, with the default of a model without them.
_AUTO = {"image_size": 224, "classes": 1000, "pool_padding": '`"infinity"`'}
_DATA_SETS = {"imagenet21k": "ImageNet-21k", "imagenet2012": "ImageNet"}


def _published(variant: str) -> str:
    """Return the list of the published weights of a variant, as its docstring shows it."""
    lines = []
    for entry in zoo.list_weights(variant):
        accuracy = "" if entry.accuracy is None else f", {entry.accuracy} % top-1 on ImageNet"
        pretraining, head = _DATA_SETS[entry.pretraining], _DATA_SETS[entry.head]
        trained = pretraining if head == pretraining else f"{pretraining}, then {head}"
        lines.append(f"    - `{entry.name!r}`: trained on {trained}, {entry.resolution} pixels{accuracy}")
    return textwrap.indent("\n".join(lines or ["    None."]), "    ")


def _constructor(variant: str, protocol: type, config_class: Any, title: str, url: str) -> Any:
    """Return the function that builds a variant."""
    name = constructor_name(variant)
    parameters = list(inspect.signature(protocol.__call__).parameters.values())[1:]  # without self
    signature = inspect.Signature(parameters)

    def build(*args, **kwargs):
        arguments = bind(name, signature, args, kwargs)
        weights = arguments.pop("weights", None)
        arguments = {key: value for key, value in arguments.items() if not (key in _AUTO and value == "auto")}
        if weights is None:
            return create_model(variant, **arguments)
        zoo.resolve(variant, weights)  # reports a wrong name or a failed download before a large model is built
        published = zoo.find(variant, os.fspath(weights))
        if published is not None:
            arguments.setdefault("classes", published.classes)
            arguments.setdefault("image_size", published.resolution)
            if published.pool_padding is not None:
                arguments.setdefault("pool_padding", published.pool_padding)
        model = create_model(variant, **arguments)
        zoo.load_weights(model, variant, weights)
        return model

    model_class = "VisionTransformer" if variant in VIT else "BiTResNet"
    arguments = argument_docs(config_class, set(config_class.names()) - set(signature.parameters))
    for argument, default in _AUTO.items():
        arguments = arguments.replace(
            f"    {argument}: ", f'    {argument}: `"auto"` for that of published weights, {default} without. '
        )
    build.__name__ = build.__qualname__ = name
    build.__module__ = __name__
    build.__signature__ = signature  # type: ignore[attr-defined]
    build.__doc__ = _DOCSTRING.format(
        variant=variant,
        name=name,
        model_class=model_class,
        title=title,
        url=url,
        arguments=arguments,
        weights=_published(variant),
    )
    return build


def _vit(variant: str) -> ViTConstructor[VisionTransformer]:
    return cast(ViTConstructor[VisionTransformer], _constructor(variant, ViTConstructor, ViTConfig, *_VIT_PAPER))


def _bit(variant: str) -> BiTConstructor[BiTResNet]:
    return cast(BiTConstructor[BiTResNet], _constructor(variant, BiTConstructor, BiTConfig, *_BIT_PAPER))


ViT_Ti16 = _vit("ViT-Ti/16")
ViT_S16 = _vit("ViT-S/16")
ViT_S32 = _vit("ViT-S/32")
ViT_B8 = _vit("ViT-B/8")
ViT_B16 = _vit("ViT-B/16")
ViT_B32 = _vit("ViT-B/32")
ViT_L16 = _vit("ViT-L/16")
ViT_L32 = _vit("ViT-L/32")
ViT_H14 = _vit("ViT-H/14")
ViT_g14 = _vit("ViT-g/14")
ViT_G14 = _vit("ViT-G/14")
R_Ti16 = _vit("R+ViT-Ti/16")
R26_S32 = _vit("R26+ViT-S/32")
R26_B32 = _vit("R26+ViT-B/32")
R50_B16 = _vit("R50+ViT-B/16")
R50_L32 = _vit("R50+ViT-L/32")
BiT_R50x1 = _bit("BiT-R50x1")
BiT_R50x3 = _bit("BiT-R50x3")
BiT_R101x1 = _bit("BiT-R101x1")
BiT_R101x3 = _bit("BiT-R101x3")
BiT_R152x2 = _bit("BiT-R152x2")
BiT_R152x4 = _bit("BiT-R152x4")

__all__ = [  # a literal, which editors and type checkers can read
    "BiT_R101x1",
    "BiT_R101x3",
    "BiT_R152x2",
    "BiT_R152x4",
    "BiT_R50x1",
    "BiT_R50x3",
    "R26_B32",
    "R26_S32",
    "R50_B16",
    "R50_L32",
    "R_Ti16",
    "ViT_B16",
    "ViT_B32",
    "ViT_B8",
    "ViT_G14",
    "ViT_H14",
    "ViT_L16",
    "ViT_L32",
    "ViT_S16",
    "ViT_S32",
    "ViT_Ti16",
    "ViT_g14",
]
