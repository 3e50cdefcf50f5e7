"""The network that a recipe describes."""

from concurrent import futures

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


def describe_network(recipe: recipes.Recipe, classes: int, channels: int = 3) -> keras.Model:
    """Builds the model of a recipe without values: one of any size is there at once, and takes no memory.

    It can be called within a `keras.StatelessScope` that gives its variables values.

    Args:
        recipe: as in `create_network`.
        classes: number of classes.
        channels: of the images.

    Returns:
        The model.
    """

    def build():
        with keras.StatelessScope(initialize_variables=False):
            return create_network(recipe, classes, channels)

    # Keras notes what is still to be initialised, to do so at the next occasion: in a thread, whose notes end with it.
    with futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(build).result()
