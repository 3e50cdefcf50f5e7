"""Creation of the model of a recipe."""

import dataclasses
import os
from concurrent import futures
from typing import Any

import keras
from absl import logging

from keras_vit import adaptation, models, zoo
from keras_vit.applications import create_model
from keras_vit.checkpoints import architecture_of
from keras_vit.models import BiTConfig, ViTConfig
from keras_vit.recipe.fields import ARGUMENT_FIELDS, Recipe
from keras_vit.tasks import MaskedTask
from keras_vit.util import storage
from keras_vit.zoo import hub

# Arguments that follow from the data and the other fields.
DERIVED = ("classes", "channels", "include_top", "head", "classifier_activation", "name", "dtype")
# Arguments that only affect training. Their values in the initial weights are ignored.
_OF_TRAINING = ("dropout_rate", "attention_dropout_rate", "drop_path_rate", "head_bias")


def argument_names(variant: str) -> list[str]:
    """Return the allowed names in `model.arguments` for a variant, or for all variants if the variant is unknown."""
    configs = [config for config, known in ((ViTConfig, models.VIT), (BiTConfig, models.BIT)) if variant in known]
    names = [name for config in configs or (ViTConfig, BiTConfig) for name in config.names()]
    return [name for name in dict.fromkeys(names) if name not in (*ARGUMENT_FIELDS, *DERIVED)]


def resolve(recipe: Recipe, architecture: dict[str, Any] | None = None) -> Recipe:
    """Return the recipe with the architecture of its initial weights in `model.arguments`.

    Models on the hub are downloaded. If other weights are not on this machine, the recipe is not changed.
    `architecture` contains the `variant` and `arguments` of an earlier call. With `architecture`, the weights are not
    read again.
    """
    model = recipe.model
    if architecture is not None:
        arguments = {**architecture["arguments"], **model.arguments}
        return dataclasses.replace(
            recipe, model=dataclasses.replace(model, variant=architecture["variant"], arguments=arguments)
        )
    is_here = model.weights and (
        os.path.exists(model.weights) or hub.canonical_name(model.weights) or storage.is_bucket_url(model.weights)
    )
    if not model.weights or not is_here:
        return recipe
    kind, found = architecture_of(model.weights, image_size=model.image_size, **model.arguments)
    ignored = (*ARGUMENT_FIELDS, *DERIVED, *_OF_TRAINING, *(() if model.head == "keep" else ("representation_size",)))
    found = ViTConfig.of_encoder(found) if found.get("head") is not None else found
    found = {name: value for name, value in found.items() if name not in ignored}
    variants = models.VIT if kind == "vit" else models.BIT
    variant = model.variant if model.variant in variants else next(iter(variants))
    sizes = dataclasses.asdict(variants[variant])
    config = ViTConfig if kind == "vit" else BiTConfig
    file, named = config(**{**sizes, **found, "image_size": None}), config(**{**sizes, "image_size": None})
    other = {name: getattr(file, name) for name in found if getattr(file, name) != getattr(named, name)}
    other = {name: value for name, value in other.items() if name not in model.arguments}
    if other:
        logging.info("%s: the model takes %s from the weights.", model.weights, _in_words(other))
    resolved = dataclasses.replace(model, variant=variant, arguments={**other, **model.arguments})
    return dataclasses.replace(recipe, model=resolved)


def weights_path(recipe: Recipe) -> str | None:
    """Return the path of the initial weights, or None. Published weights are downloaded if necessary."""
    return zoo.resolve(recipe.model.weights, recipe.model.variant) if recipe.model.weights else None


def build_model(recipe: Recipe, classes: int, channels: int = 3) -> keras.Model:
    """Build the model of a recipe. Its weights depend only on the seed. `model.weights` is not read."""
    keras.utils.set_random_seed(recipe.seed)
    if isinstance(recipe.task, MaskedTask):
        model = recipe.task.create_model(recipe, channels)
    else:
        arguments = model_arguments_for(recipe, classes, channels)
        model = create_model(recipe.model.variant, dtype=recipe.precision, **arguments)
    if recipe.adapt != "all":
        adaptation.adapt(model, recipe.adapt)
    return model


def model_arguments_for(recipe: Recipe, classes: int, channels: int = 3) -> dict[str, Any]:
    """Return the arguments of a recipe's model with a head for `classes` classes."""
    arguments = {"classes": classes, "channels": channels, **recipe.model.constructor_arguments()}
    head = recipe.task.create_head(classes, recipe.precision)
    if head is None:
        return arguments
    recipe.task.require_vit(recipe)
    return {**ViTConfig.of_encoder(arguments), "head": head}


def describe_model(recipe: Recipe, classes: int, channels: int = 3) -> keras.Model:
    """Build the model of a recipe without initial values, in almost no time, for use in a `keras.StatelessScope`."""

    def build():
        with keras.StatelessScope(initialize_variables=False):
            return build_model(recipe, classes, channels)

    # Keras keeps a list of uninitialized variables per thread. Use a new thread to discard the list with the thread.
    with futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(build).result()


def _in_words(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
