"""The model that a recipe describes."""

from concurrent import futures

import keras

from keras_vit import models
from keras_vit.recipe.fields import Recipe

_NOT_ARGUMENTS = ("variant", "checkpoint", "head")  # of the recipe's fields; the others are the model's own


def create_model(recipe: Recipe, classes: int, channels: int = 3) -> keras.Model:
    """Build the model of a recipe, with initial weights that depend only on its seed.

    Args:
        recipe: The recipe.
        classes: Number of classes.
        channels: Channels of the images.

    Raises:
        ValueError: If an argument is wrong or the variant has no such argument.
    """
    keras.utils.set_random_seed(recipe.seed)
    arguments = {
        name: value for name, value in vars(recipe.model).items() if name not in _NOT_ARGUMENTS and value is not None
    }
    return models.create_model(
        recipe.model.variant, classes=classes, channels=channels, dtype=recipe.precision, **arguments
    )


def describe_model(recipe: Recipe, classes: int, channels: int = 3) -> keras.Model:
    """Build the model of a recipe without values, whatever its size, in no time and memory.

    It can be called within a `keras.StatelessScope` that gives its variables values.

    Args:
        recipe: The recipe.
        classes: Number of classes.
        channels: Channels of the images.
    """

    def build():
        with keras.StatelessScope(initialize_variables=False):
            return create_model(recipe, classes, channels)

    # Keras lists variables to initialize later, per thread: the list of this one ends with it.
    with futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(build).result()
