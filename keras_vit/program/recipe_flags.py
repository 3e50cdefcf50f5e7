"""The recipe that the command line describes."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_vit.program import recipe_file
from keras_vit.program.common_flags import data_argument

if TYPE_CHECKING:
    from keras_vit.recipe import Recipe

DEFAULT = "folder"  # the recipe for any data set that is named without one


def recipe_from_flags(arguments: Sequence[str] = ()) -> "Recipe":
    """Return the recipe of `--config` with the other flags and its overrides, checked.

    A recipe whose `get_config` has keyword arguments named `data`, `model`, `image_size` or `adapt` gets these itself.
    The function `fit` of a recipe file gets the recipe and the function that applies flags and overrides.
    """
    from keras_vit import recipe as recipes

    options, data = flags.FLAGS, data_argument(arguments)
    if not options.config and not data:
        raise ValueError(
            "Name a data set, such as folder:images, or a recipe, such as --config=digits (--list_recipes)."
        )
    if data and not options.config and data in recipe_file.names() and not os.path.exists(data):
        raise ValueError(f"{data!r} is a recipe, not a data set: --config={data}")
    named = recipes.named_checkpoint(options.model, options.image_size) if options.model else {}
    own_weights = named.pop("weights", None)
    weights = options.weights or own_weights
    chosen: dict[str, Any] = {name: options[name].value for name in ("model", "image_size", "adapt")}
    chosen = {"data": data, **chosen, **named}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    recipe, rest, fit = recipe_file.load(options.config or DEFAULT, chosen)

    def changed(recipe: "Recipe") -> "Recipe":
        if "data" in rest:
            recipe = recipes.replace(recipe, {"data.source": rest["data"]})
        if "model" in rest:
            recipe = recipes.with_weights(recipe, "none") if weights else recipe
            recipe = recipes.with_variant(recipe, rest["model"])
        if weights:
            recipe = recipes.with_weights(recipe, weights)
        if "image_size" in rest:
            recipe = recipes.with_image_size(recipe, rest["image_size"])
        if "adapt" in rest:
            recipe = recipes.replace(recipe, {"adapt": rest["adapt"]})
        for override in options.override:
            field, _, text = override.partition("=")
            recipe = recipes.override(recipe, field, text)
        return recipe

    return recipes.check(fit(recipe, changed))


def with_normalization(recipe: "Recipe", workdir: str) -> "Recipe":
    """Return the recipe with the normalization of the weights that a flag names, where no flag sets the preprocessing.

    Published weights are downloaded. A run that is resumed keeps its normalization: its first weights may be gone.
    """
    from keras_vit import recipe as recipes
    from keras_vit.checkpoints.load import normalization_of
    from keras_vit.data import preprocess
    from keras_vit.training import pixel_range, run_directory

    changed = {override.partition("=")[0] for override in flags.FLAGS.override}
    fields = [name for name in ("pp_train", "pp_eval") if f"data.{name}" not in changed]
    is_named = recipe.model.checkpoint in (flags.FLAGS.model, flags.FLAGS.weights) or "model.checkpoint" in changed
    if not recipe.model.checkpoint or not is_named:
        return recipe
    if before := run_directory.recorded(workdir).get("recipe"):
        operations = {f"data.{name}": preprocess.split(before["data"][name])[1] for name in fields}
    else:
        operation = normalization_of(recipes.weights_path(recipe) or "")
        operations = {f"data.{name}": operation for name in fields if operation}
    return pixel_range.with_normalization(recipe, operations)


def default_workdir(arguments: Sequence[str]) -> str:
    """Return the run directory for a data set or recipe that is trained without `--workdir`: `runs/NAME`."""
    named = data_argument(arguments) or flags.FLAGS.config
    place = os.path.basename(os.path.normpath(named.partition("#")[0].rpartition(":")[2]))
    return os.path.join("runs", place.removesuffix(".py") or "run")
