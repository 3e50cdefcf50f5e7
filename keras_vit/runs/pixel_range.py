"""Pixel normalization: keeps the preprocessing string of a recipe and the record in a model consistent."""

from collections.abc import Mapping

import numpy as np
from absl import logging

from keras_vit import recipe as recipes
from keras_vit.data import preprocess
from keras_vit.models.base import ConfiguredModel
from keras_vit.models.normalization import of_images, operation, value_range


def set_normalization(model: ConfiguredModel, pp: str) -> None:
    """Record a preprocessing string's normalization in a model. Warn if the weights expect another normalization."""
    low, high = value_range(preprocess.device_function(pp), model.config.channels)
    # Six digits, because single precision turns 0.485 into 0.48500001.
    mean, deviation = ([float(f"{x:.6g}") for x in side] for side in (-low / (high - low), 1.0 / (high - low)))
    known, input_range = of_images(model), model.config.input_range
    if input_range is None:  # otherwise the model normalizes its inputs
        model.input_normalization = (mean, deviation)
    if known is not None and not np.allclose(known, (mean, deviation), rtol=1e-4):
        own = operation(known, input_range)
        logging.warning(
            "The weights expect images after %s. The preprocessing of this recipe is %r. To change it, set both "
            "--config.data.pp_train and --config.data.pp_eval to end in that operation: --config.data.pp_eval='%s'",
            own,
            pp,
            "|".join(filter(None, (preprocess.split(pp)[0], own))),
        )


def with_normalization(recipe: recipes.Recipe, operations: Mapping[str, str]) -> recipes.Recipe:
    """Replace the normalization at the end of preprocessing strings. `operations` maps fields to new operations."""
    for field, new in operations.items():
        host, old = preprocess.split(recipes.get(recipe, field))
        before, after = (value_range(preprocess.device_function(pp), 3) for pp in (old, new))
        if not np.allclose(before, after, rtol=1e-4):
            recipe = recipes.replace(recipe, {field: "|".join(filter(None, (host, new)))})
    return recipe
