"""The recipe that the command line describes."""

from typing import TYPE_CHECKING

from absl import flags

if TYPE_CHECKING:
    from keras_vit.recipe import Recipe


def recipe_from_flags() -> "Recipe":
    """Return the recipe of `--config` with its overrides, checked.

    Raises:
        ValueError: If `--config` is missing or wrong, or a field is unknown, of the wrong type or out of range.
    """
    from keras_vit import recipe as recipes
    from keras_vit.program import recipe_file

    if not flags.FLAGS.config:
        raise ValueError("--config is missing. Give a recipe, such as --config=train/configs/digits.py")
    recipe = recipe_file.load(flags.FLAGS.config)
    for override in flags.FLAGS.override:
        field, _, text = override.partition("=")
        recipe = recipes.override(recipe, field, text)
    return recipes.check(recipe)
