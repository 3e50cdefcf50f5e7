"""Normalization of the input as the configurations of PyTorch projects state it."""

import math
from typing import Any

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.models import normalization
from keras_vit.models.normalization import Normalization


def input_normalization(mean: Any, deviation: Any, where: str) -> Normalization | None:
    """Return a stated mean and deviation; None if one of them is missing."""
    if mean is None or deviation is None:
        return None
    try:
        return normalization.resolve((mean, deviation))
    except ValueError as error:
        raise CheckpointError(f"{where} has an invalid mean or deviation of the input: {error}") from error


def stated_normalization(preprocessor: dict[str, Any], path: str) -> Normalization | None:
    """Return the mean and deviation, of pixels in [0, 1], that a `preprocessor_config.json` states."""
    mean, deviation = preprocessor.get("image_mean"), preprocessor.get("image_std")
    if not preprocessor.get("do_normalize", True):
        mean, deviation = 0.0, 1.0
    factor = preprocessor.get("rescale_factor", 1 / 255) if preprocessor.get("do_rescale", True) else 1.0
    where = f"{path}: preprocessor_config.json"
    found = input_normalization(mean, deviation, where)
    # Mean and deviation are those of pixels times another factor.
    unit = input_normalization(0.0, factor, where)
    if found is None or unit is None or math.isclose(255.0 * unit[1][0], 1.0, rel_tol=1e-6):
        return found
    mean, deviation = ([number / (255.0 * unit[1][0]) for number in side] for side in found)
    return input_normalization(mean, deviation, where)
