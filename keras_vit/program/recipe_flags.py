"""The recipe that the command line describes."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_vit.program import recipe_names
from keras_vit.program.common_flags import data_argument

if TYPE_CHECKING:
    from keras_vit.recipe import Recipe

DEFAULT = "folder"  # the recipe for any data set that is named without one


def recipe_from_flags(arguments: Sequence[str] = ()) -> "Recipe":
    """Return the recipe of `--config` with the other flags and its overrides, checked.

    A recipe whose `get_config` has keyword arguments named `data`, `model` or `image_size` gets these itself.

    Args:
        arguments: Command line without the flags and the program: nothing, or a data set.

    Raises:
        ValueError: If a flag is missing or wrong, or a field is unknown, of the wrong type or out of range.
    """
    from keras_vit import recipe as recipes
    from keras_vit.program import recipe_file

    options, data = flags.FLAGS, data_argument(arguments)
    if not options.config and not data:
        raise ValueError(
            "Name a data set, such as folder:images, or a recipe, such as --config=digits (--list_recipes)."
        )
    if data and not options.config and data in recipe_names.names() and not os.path.exists(data):
        raise ValueError(f"{data!r} is a recipe, not a data set: --config={data}")
    chosen: dict[str, Any] = {"data": data, "model": options.model, "image_size": options.image_size}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    recipe, rest = recipe_file.load(options.config or DEFAULT, chosen)
    if "data" in rest:
        recipe.data.source = rest["data"]
    if "model" in rest:
        recipe = recipes.with_variant(recipe, rest["model"])
    if options.weights:
        recipe = recipes.with_weights(recipe, options.weights)
    if "image_size" in rest:
        recipe = recipes.with_image_size(recipe, rest["image_size"])
    for override in options.override:
        field, _, text = override.partition("=")
        recipe = recipes.override(recipe, field, text)
    return recipes.check(recipe)


def default_workdir(arguments: Sequence[str]) -> str:
    """Return the run directory for a data set or recipe that is trained without `--workdir`: `runs/NAME`."""
    named = data_argument(arguments) or flags.FLAGS.config
    place = os.path.basename(os.path.normpath(named.partition("#")[0].rpartition(":")[2]))
    return os.path.join("runs", place.removesuffix(".py") or "run")
