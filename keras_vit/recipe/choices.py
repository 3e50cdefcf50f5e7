"""User choices that affect several fields of a recipe: variant, weights, image size."""

import dataclasses
import os
import re
from typing import Any

from keras_vit import models, zoo
from keras_vit.checkpoints import recognition
from keras_vit.recipe.fields import Recipe
from keras_vit.recipe.model import argument_names
from keras_vit.zoo import hub
from keras_vit.zoo.variants import constructor_name, full_name

FROM_SCRATCH = "none"
_SIZED = (
    "resize|resize_small|resize_long|central_crop|random_crop|scaled_crop|inception_crop|decode_jpeg_and_inception_crop"
)
_SIZE = re.compile(rf"\b({_SIZED})\((\d+)")
_PRETRAINED = ("imagenet21k", "augreg-imagenet21k", "bit-m", "dinov2")


def pretrained(variant: str, *preferred: str) -> str:
    """Return the name of the default weights for fine-tuning a variant, trained on ImageNet-21k or by DINOv2.

    The result is the first of `preferred` that `keras_vit.list_weights(variant)` contains, or another of these weights.
    For a variant without published weights it is the name of a file.

    Example:
    >>> pretrained("ViT-S/16")
    'augreg-imagenet21k'
    """
    published = [entry.name for entry in zoo.list_weights(variant)]
    found = [name for name in (*preferred, *_PRETRAINED) if name in published]
    return found[0] if found else f"{variant.replace('/', '_')}.npz"


def with_variant(recipe: Recipe, variant: str) -> Recipe:
    """Return the recipe for another variant. Published weights are replaced by published weights of the new variant.

    The variant is the name of a model (`"ViT-S/16"`) or of its constructor (`"ViT_S16"`).
    """
    model, variant = recipe.model, full_name(variant)
    weights = model.weights
    if weights and (weights == pretrained(model.variant) or zoo.find(model.variant, weights)):
        weights = pretrained(variant, weights)
    sizes = dataclasses.asdict((models.VIT if variant in models.VIT else models.BIT)[variant])
    kept = {name for name in argument_names(variant) if name not in (*sizes, "pool_padding")}
    arguments = {name: value for name, value in model.arguments.items() if name in kept}
    changed = dataclasses.replace(model, variant=variant, weights=None, arguments=arguments)
    recipe = dataclasses.replace(recipe, model=changed)
    return with_weights(recipe, weights) if weights else recipe


def named_checkpoint(model: str, image_size: int | None = None) -> dict[str, Any]:
    """Return `model` (the variant), `weights` and `image_size` for a checkpoint that is given instead of a variant.

    The checkpoint is one of: a model of the Hugging Face hub, which is downloaded; a file or directory; or published
    weights with their variant (`"ViT_S16:augreg"`). If the model does not match a variant, the variant with the nearest
    width is returned, and the recipe takes the model's arguments from the checkpoint. For the name of a variant, the
    result is empty.
    """
    variants = models.list_models()
    if model in (*variants, *map(constructor_name, variants)) or not (":" in model or os.path.exists(model)):
        return {}
    entry = zoo.parse_weights_name(model).entry
    if entry is not None and not hub.canonical_name(entry.path):  # hub directories can state another evaluation size
        return {"model": entry.model, "weights": model, "image_size": image_size or entry.resolution}
    checkpoint = recognition.read_headers(model)
    found = recognition.arguments_of(checkpoint, {}, recognition.without_decoder(checkpoint))
    sizes_of = models.BIT if checkpoint.kind == "bit" else models.VIT
    same = [name for name, sizes in sizes_of.items() if dataclasses.asdict(sizes).items() <= found.items()]
    height, width = checkpoint.evaluated_size or (found.get("image_size"),) * 2
    size = {"image_size": image_size or height} if height == width and (image_size or height) else {}
    nearest = min(
        sizes_of, key=lambda name: abs(getattr(sizes_of[name], "hidden_size", 0) - found.get("hidden_size", 0))
    )
    return {"model": same[0] if same else nearest, "weights": model, **size}


def with_weights(recipe: Recipe, weights: str) -> Recipe:
    """Return the recipe with other initial weights: a name, a file, a URL, or `"none"` to train from scratch."""
    model = recipe.model
    if weights == FROM_SCRATCH:
        return dataclasses.replace(recipe, model=dataclasses.replace(model, weights=None))
    entry = zoo.parse_weights_name(weights, model.variant).entry
    padding = entry.pool_padding if entry else None
    arguments = {**model.arguments, "pool_padding": padding} if padding else model.arguments
    return dataclasses.replace(recipe, model=dataclasses.replace(model, weights=weights, arguments=arguments))


def with_image_size(recipe: Recipe, image_size: int) -> Recipe:
    """Return the recipe for another image size in pixels, with the sizes in its preprocessing strings in proportion."""

    def scaled(text: str) -> str:
        return with_scaled_sizes(text, image_size / recipe.model.image_size)

    def sized(pp: str) -> str:
        if _SIZE.search(pp):
            return scaled(pp)
        before, bar, values = pp.rpartition("|")
        resized = f"resize({image_size}, antialias=True)"
        return f"{before}{bar}{resized}|{values}" if pp else resized

    data = dataclasses.replace(recipe.data, pp_train=sized(recipe.data.pp_train), pp_eval=sized(recipe.data.pp_eval))
    model = dataclasses.replace(recipe.model, image_size=image_size)
    return dataclasses.replace(recipe, model=model, data=data, evaluators=tuple(map(scaled, recipe.evaluators)))


def with_scaled_sizes(pp: str, factor: float) -> str:
    """Multiply the image sizes in a preprocessing string by a factor."""
    return _SIZE.sub(lambda found: f"{found[1]}({round(int(found[2]) * factor)}", pp)
