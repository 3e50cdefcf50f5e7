"""Constructors of the published variants, similar to `keras.applications`."""

import dataclasses
import inspect
import os
import textwrap
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from keras_vit import zoo
from keras_vit.checkpoints import load_checkpoint
from keras_vit.models import BIT, VIT, BiTConfig, BiTResNet, VisionTransformer, ViTConfig, constructor_name
from keras_vit.models.arguments import bind, check_names, with_arguments
from keras_vit.models.bit import PublishedBiT
from keras_vit.models.vit_options import PublishedViT
from keras_vit.zoo.variants import full_name

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
        ValueError: If an argument is out of range, or the checkpoint does not match the model.
        TypeError: If an argument is unknown.

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
    """Return the list of a variant's published weights for its docstring."""
    lines = []
    for entry in zoo.list_weights(variant):
        accuracy = "" if entry.accuracy is None else f", {entry.accuracy}% top-1 on ImageNet"
        pretraining, head = _DATA_SETS[entry.pretraining], _DATA_SETS.get(entry.head or "", "without a head")
        trained = pretraining if head == pretraining else f"{pretraining}, then {head}"
        trained = f"{pretraining}, {head}" if entry.head is None else trained
        lines.append(f"    - `{entry.name!r}`: trained on {trained}, {entry.resolution} pixels{accuracy}")
    return textwrap.indent("\n".join(lines or ["    None."]), "    ")


def create_model(
    variant: str, *, weights: str | os.PathLike[str] | None = None, **arguments: Any
) -> VisionTransformer | BiTResNet:
    """Build a model by the name of its variant, with random or published weights.

    Args:
        variant: A name from `list_models()`, such as `"ViT-B/16"`, or the name of its constructor, such as `"ViT_B16"`.
        weights: A name from `list_weights(variant)`, a model of the Hugging Face Hub (`"hf:OWNER/NAME"`), or the path
            of a checkpoint. None initializes the weights randomly.
        **arguments: Arguments of `VisionTransformer` or `BiTResNet`, which override the sizes of the variant and the
            arguments of the published weights.

    Returns:
        A `VisionTransformer` or a `BiTResNet`. To build the model of a checkpoint without knowing its variant, call
        `model_from_checkpoint`.

    Raises:
        ValueError: If the variant or an argument is unknown, an argument is invalid, or the weights do not match.
        OSError: If the weights cannot be downloaded.

    Example:
    >>> model = create_model("ViT-Ti/16", image_size=32, classes=10)
    >>> model.output_shape
    (None, 10)
    """
    variant = full_name(variant)
    if weights is None:
        return _build(variant, arguments)
    named = zoo.parse_weights_name(weights, variant)
    path = named.local()  # a failed download raises its error before a large model is built
    if named.entry is not None:
        path, arguments = f"{variant}:{named.entry.name}", _with_published(named.entry, arguments)
    model = _build(variant, arguments)
    load_checkpoint(model, path)
    return model


def _build(variant: str, arguments: dict[str, Any]) -> VisionTransformer | BiTResNet:
    """Build a variant with random weights."""
    model_class, config_class = (VisionTransformer, ViTConfig) if variant in VIT else (BiTResNet, BiTConfig)
    check_names("create_model", arguments, config_class.names(), ValueError)
    sizes = dataclasses.asdict(VIT.get(variant) or BIT[variant])
    return model_class(**{"name": layer_safe_name(variant), **sizes, **arguments})


def layer_safe_name(name: str) -> str:
    """Convert the name of a variant to a valid Keras name, such as `vit_b16` or `r50_vit_b16`."""
    return name.lower().replace("/", "").replace("-", "_").replace("+", "_")


def _with_published(entry: zoo.PublishedWeights, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a model with published weights. The caller's arguments take precedence."""
    options = entry.arguments
    if arguments.get("head") is not None:
        options = ViTConfig.of_encoder(options)
    elif entry.head is None:
        arguments.setdefault("include_top", "classes" in arguments)
    else:
        arguments.setdefault("classes", entry.classes)
    if entry.pool_padding is not None:
        arguments.setdefault("pool_padding", entry.pool_padding)
    return {**options, "image_size": entry.resolution, **arguments}


def _constructor(
    variant: str, arguments_class: Callable[P, object], model_class: Callable[..., Model]
) -> Callable[P, Model]:
    """Return a function that builds a variant and takes the fields of a dataclass as arguments."""
    name, signature = constructor_name(variant), inspect.signature(arguments_class)

    def build(*args, **kwargs):
        given = bind(name, signature, args, kwargs)
        weights = given.pop("weights", None)
        arguments = {key: value for key, value in given.items() if not (key in _FROM_WEIGHTS and value == "auto")}
        return create_model(variant, weights=weights, **arguments)

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
