"""The normalization of pixels by preprocessing strings, as a model and a recipe state it."""

from collections.abc import Mapping

import numpy as np
from absl import logging

from keras_vit import recipe as recipes
from keras_vit.data import preprocess
from keras_vit.models.base import ConfiguredModel
from keras_vit.models.normalization import of_images, operation, value_range


def set_normalization(model: ConfiguredModel, pp: str) -> None:
    """Note in a model how a preprocessing string normalizes its input, and warn if its weights know another way."""
    low, high = value_range(preprocess.device_function(pp), model.config.channels)
    # Six digits: single precision makes 0.485 to 0.48500001.
    mean, deviation = ([float(f"{x:.6g}") for x in side] for side in (-low / (high - low), 1.0 / (high - low)))
    known, input_range = of_images(model), model.config.input_range
    if input_range is None:  # otherwise the model normalizes
        model.input_normalization = (mean, deviation)
    if known is not None and not np.allclose(known, (mean, deviation), rtol=1e-4):
        own = operation(known, input_range)
        logging.warning(
            "The weights expect images after %s. The preprocessing of this recipe is %r. To change it, end "
            "--config.data.pp_train in that operation, too: --config.data.pp_eval='%s'",
            own,
            pp,
            "|".join(filter(None, (preprocess.split(pp)[0], own))),
        )


def with_normalization(recipe: recipes.Recipe, operations: Mapping[str, str]) -> recipes.Recipe:
    """Return the recipe with other operations on values at the end of preprocessing strings, by field."""
    for field, new in operations.items():
        host, old = preprocess.split(recipes.get(recipe, field))
        before, after = (value_range(preprocess.device_function(pp), 3) for pp in (old, new))
        if not np.allclose(before, after, rtol=1e-4):
            recipe = recipes.replace(recipe, {field: "|".join(filter(None, (host, new)))})
    return recipe
