"""Published variants as constructors, in the manner of `keras.applications`."""

import inspect
import os
import textwrap
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from keras_vit import zoo
from keras_vit.models import BiTResNet, VisionTransformer, ViTConfig, constructor_name, create_model
from keras_vit.models.arguments import bind, with_arguments
from keras_vit.models.bit import PublishedBiT
from keras_vit.models.vit_options import PublishedViT

P = ParamSpec("P")
Model = TypeVar("Model")

_DOCSTRING = """Build {variant}, with random or published weights.

    A functional `keras.Model` from float images in [-1, 1], `[B, height, width, channels]`, to logits `[B, classes]`.

    Args:
        See `keras_vit.models`.

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
_PAPERS = {
    "VisionTransformer": (
        "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
        "https://arxiv.org/abs/2010.11929",
    ),
    "BiTResNet": ("Big Transfer (BiT): General Visual Representation Learning", "https://arxiv.org/abs/1912.11370"),
}
_FROM_WEIGHTS = ("image_size", "classes", "pool_padding")  # arguments that may be "auto"
_DATA_SETS = {"imagenet21k": "ImageNet-21k", "imagenet2012": "ImageNet", "lvd142m": "LVD-142M", "webli": "WebLI"}


def _published(variant: str) -> str:
    """Return the list of the published weights of a variant, as its docstring shows it."""
    lines = []
    for entry in zoo.list_weights(variant):
        accuracy = "" if entry.accuracy is None else f", {entry.accuracy} % top-1 on ImageNet"
        pretraining, head = _DATA_SETS[entry.pretraining], _DATA_SETS.get(entry.head or "", "without a head")
        trained = pretraining if head == pretraining else f"{pretraining}, then {head}"
        trained = f"{pretraining}, {head}" if entry.head is None else trained
        lines.append(f"    - `{entry.name!r}`: trained on {trained}, {entry.resolution} pixels{accuracy}")
    return textwrap.indent("\n".join(lines or ["    None."]), "    ")


def _constructor(
    variant: str, arguments_class: Callable[P, object], model_class: Callable[..., Model]
) -> Callable[P, Model]:
    """Return the function that builds a variant. It takes the arguments of a dataclass."""
    name, signature = constructor_name(variant), inspect.signature(arguments_class)

    def build(*args, **kwargs):
        given = bind(name, signature, args, kwargs)
        weights = given.pop("weights", None)
        arguments = {key: value for key, value in given.items() if not (key in _FROM_WEIGHTS and value == "auto")}
        if weights is None:
            return create_model(variant, **arguments)
        zoo.resolve(variant, weights)  # reports a wrong name or a failed download before a large model is built
        published = zoo.find(variant, os.fspath(weights))
        if published is not None:
            options = published.arguments
            if arguments.get("head") is not None:
                options = ViTConfig.of_encoder(options)
            elif published.head is None:
                arguments.setdefault("include_top", "classes" in arguments)
            else:
                arguments.setdefault("classes", published.classes)
            arguments = {**options, "image_size": published.resolution, **arguments}
            if published.pool_padding is not None:
                arguments.setdefault("pool_padding", published.pool_padding)
        model = create_model(variant, **arguments)
        zoo.load_weights(model, variant, weights)
        return model

    title, url = _PAPERS[model_class.__name__]
    text = _DOCSTRING.format(
        variant=variant,
        name=name,
        model_class=model_class.__name__,
        title=title,
        url=url,
        weights=_published(variant),
    )
    build.__name__ = build.__qualname__ = name
    build.__module__ = __name__
    build.__signature__ = signature.replace(return_annotation=model_class)  # type: ignore[attr-defined]
    build.__doc__ = with_arguments(text, arguments_class)
    return build


ViT_Ti16 = _constructor("ViT-Ti/16", PublishedViT, VisionTransformer)
ViT_S16 = _constructor("ViT-S/16", PublishedViT, VisionTransformer)
ViT_S32 = _constructor("ViT-S/32", PublishedViT, VisionTransformer)
ViT_B8 = _constructor("ViT-B/8", PublishedViT, VisionTransformer)
ViT_B16 = _constructor("ViT-B/16", PublishedViT, VisionTransformer)
ViT_B32 = _constructor("ViT-B/32", PublishedViT, VisionTransformer)
ViT_L16 = _constructor("ViT-L/16", PublishedViT, VisionTransformer)
ViT_L32 = _constructor("ViT-L/32", PublishedViT, VisionTransformer)
ViT_H14 = _constructor("ViT-H/14", PublishedViT, VisionTransformer)
ViT_g14 = _constructor("ViT-g/14", PublishedViT, VisionTransformer)
ViT_G14 = _constructor("ViT-G/14", PublishedViT, VisionTransformer)
ViT_S14 = _constructor("ViT-S/14", PublishedViT, VisionTransformer)
ViT_B14 = _constructor("ViT-B/14", PublishedViT, VisionTransformer)
ViT_L14 = _constructor("ViT-L/14", PublishedViT, VisionTransformer)
ViT_giant2_14 = _constructor("ViT-giant2/14", PublishedViT, VisionTransformer)
ViT_Splus16 = _constructor("ViT-S+/16", PublishedViT, VisionTransformer)
ViT_Hplus16 = _constructor("ViT-H+/16", PublishedViT, VisionTransformer)
ViT_So400m14 = _constructor("ViT-So400m/14", PublishedViT, VisionTransformer)
ViT_So400m16 = _constructor("ViT-So400m/16", PublishedViT, VisionTransformer)
R_Ti16 = _constructor("R+ViT-Ti/16", PublishedViT, VisionTransformer)
R26_S32 = _constructor("R26+ViT-S/32", PublishedViT, VisionTransformer)
R26_B32 = _constructor("R26+ViT-B/32", PublishedViT, VisionTransformer)
R50_B16 = _constructor("R50+ViT-B/16", PublishedViT, VisionTransformer)
R50_L32 = _constructor("R50+ViT-L/32", PublishedViT, VisionTransformer)
BiT_R50x1 = _constructor("BiT-R50x1", PublishedBiT, BiTResNet)
BiT_R50x3 = _constructor("BiT-R50x3", PublishedBiT, BiTResNet)
BiT_R101x1 = _constructor("BiT-R101x1", PublishedBiT, BiTResNet)
BiT_R101x3 = _constructor("BiT-R101x3", PublishedBiT, BiTResNet)
BiT_R152x2 = _constructor("BiT-R152x2", PublishedBiT, BiTResNet)
BiT_R152x4 = _constructor("BiT-R152x4", PublishedBiT, BiTResNet)
