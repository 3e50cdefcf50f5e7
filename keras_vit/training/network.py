"""The network that a recipe describes."""

import contextlib

import keras

from keras_vit import models
from keras_vit import recipe as recipes

_NOT_ARGUMENTS = ("variant", "checkpoint", "head")  # of the recipe's fields; the others are the model's own


def create_network(recipe: recipes.Recipe, classes: int, channels: int = 3) -> keras.Model:
    """Builds the model of a recipe, with initial weights that depend only on its seed.

    Args:
        recipe: of the run; fields that are None keep what the variant defines.
        classes: number of classes.
        channels: of the images.

    Returns:
        The model, to be made in the strategy's scope.

    Raises:
        ValueError: if an argument is wrong or the variant has no such argument.
    """
    keras.utils.set_random_seed(recipe.seed)
    arguments = {
        name: value for name, value in vars(recipe.model).items() if name not in _NOT_ARGUMENTS and value is not None
    }
    return models.create_model(
        recipe.model.variant, classes=classes, channels=channels, dtype=recipe.precision, **arguments
    )


def without_values() -> contextlib.AbstractContextManager:
    """Returns a scope in which a network has shapes only: one of any size is made at once, and takes no memory."""
    return keras.StatelessScope(initialize_variables=False)
