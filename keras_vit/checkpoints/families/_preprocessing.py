"""Read the resizing and normalization of images from transformers' and timm's configurations."""

import math
import re
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.formats.tensors import CheckpointError
from keras_vit.models import normalization
from keras_vit.models.normalization import Normalization
from keras_vit.models.resizing import Resizing

# Pillow's filters by number, and by timm's names.
_FILTERS = {1: "pillow_lanczos", 2: "pillow_bilinear", 3: "pillow_bicubic"}
_NAMES = {name.removeprefix("pillow_"): name for name in _FILTERS.values()}
_CROP_FRACTION = 0.875  # timm's default


def of_transformers(document: Mapping[str, Any]) -> Resizing | None:
    """Return the resizing of transformers' image processor, or None if it is disabled or not supported."""
    kind = str(document.get("image_processor_type", document.get("feature_extractor_type", "")))
    # An integer is the shorter side for processors that keep proportions, and the side of a square for all other
    # processors.
    resized = _size(document.get("size"), keeps_proportions=re.match("Bit|CLIP|ConvNext", kind) is not None)
    method: Any = _FILTERS.get(document.get("resample", 2))
    if kind.startswith("DINOv3ViT"):
        method = "antialiased" if method == "pillow_bilinear" else None  # DINOv3 resizes floating-point pixels
    if not document.get("do_resize", True) or resized is None or method is None:
        return None
    size = _size(document.get("crop_size")) if document.get("do_center_crop") else resized
    return _resizing(size, resized, method)


def of_timm(config: Mapping[str, Any]) -> Resizing | None:
    """Return the resizing of timm's evaluation, or None if the resizing is missing or not supported."""
    size, fraction = config.get("input_size"), config.get("crop_pct") or _CROP_FRACTION
    method, mode = _NAMES.get(str(config.get("interpolation", "bicubic"))), config.get("crop_mode") or "center"
    if not isinstance(size, (list, tuple)) or len(size) != 3 or not isinstance(fraction, (int, float)) or not method:
        return None
    if not 0.1 <= fraction <= 1 or not all(isinstance(side, int) for side in size):
        return None
    before = tuple(math.floor(side / fraction) for side in size[1:])
    if mode == "center" and before[0] == before[1]:
        return _resizing(tuple(size[1:]), before[0], method, "even")
    return _resizing(tuple(size[1:]), before, method, "even") if mode == "squash" else None


def input_normalization(mean: Any, deviation: Any, where: str) -> Normalization | None:
    """Return mean and standard deviation as a normalization, or None if either is missing."""
    if mean is None or deviation is None:
        return None
    try:
        return normalization.resolve((mean, deviation))
    except ValueError as error:
        raise CheckpointError(f"{where} has an invalid mean or standard deviation of the input: {error}") from error


def stated_normalization(preprocessor: dict[str, Any], path: str) -> Normalization | None:
    """Return the normalization in `preprocessor_config.json`, or None if it does not apply to pixels in [0, 1]."""
    factor = preprocessor.get("rescale_factor", 1 / 255) if preprocessor.get("do_rescale", True) else 1.0
    if not isinstance(factor, float) or not math.isclose(255.0 * factor, 1.0, rel_tol=1e-6):
        return None
    mean, deviation = preprocessor.get("image_mean"), preprocessor.get("image_std")
    if not preprocessor.get("do_normalize", True):
        mean, deviation = 0.0, 1.0
    return input_normalization(mean, deviation, f"{path}: preprocessor_config.json")


def _resizing(size: Any, resized: Any, method: str, rounding: str = "down") -> Resizing | None:
    try:
        return Resizing(size, resized, method, rounding)
    except (ValueError, TypeError):
        return None


def _size(stated: Any, keeps_proportions: bool = False) -> Any:
    """Return the shorter side or (height, width), or None for any other value."""
    if isinstance(stated, Mapping):
        if set(stated) == {"shortest_edge"}:
            return stated["shortest_edge"]
        return (stated["height"], stated["width"]) if {"height", "width"} <= set(stated) else None
    if isinstance(stated, int):
        return stated if keeps_proportions else (stated, stated)
    return None
