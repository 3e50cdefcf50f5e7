"""Creation of a recipe from the command line."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from keras_vit.cli.common_flags import data_argument
from keras_vit.training import chosen_recipe

if TYPE_CHECKING:
    from keras_vit.recipe import Recipe


def choices_from_flags(arguments: Sequence[str]) -> chosen_recipe.Choices:
    """Return the choices from the flags of `define_recipe_flags` and from the other arguments."""
    options = flags.FLAGS
    names = ("config", "model", "weights", "image_size", "adapt", "time")
    settings = dict(override.partition("=")[::2] for override in options.override)
    given = {name: options[name].value for name in names}
    return chosen_recipe.Choices(data_argument(arguments), **given, settings=settings, as_text=True)


def recipe_from_flags(arguments: Sequence[str] = (), workdir: str | None = None) -> "Recipe":
    """Return the checked recipe of the flags; see `chosen_recipe.recipe_of`."""
    return chosen_recipe.recipe_of(choices_from_flags(arguments), workdir)


def default_workdir(arguments: Sequence[str] = ()) -> str:
    """Return the run directory to use without `--workdir`."""
    return choices_from_flags(arguments).workdir()
