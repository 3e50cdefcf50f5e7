"""Headings of pages and figures, without absolute paths, because pages and figures are shared."""

import datetime
import os
from collections.abc import Mapping
from typing import Any

from keras_vit import models, version

_SIZES = ("hidden_size", "num_layers", "mlp_dim", "num_heads")


def run_title(recipe: Mapping[str, Any]) -> str:
    """Return a title for a run from its recipe, such as `"ViT-B/16 on flowers"`."""
    return f"{model_title(recipe['model'])} on {source_title(recipe['data']['source'])}"


def source_title(source: str) -> str:
    """Return the name of a data source. An absolute path is shortened to the name of its folder."""
    _, colon, location = source.partition("#")[0].partition(":")
    return os.path.basename(os.path.normpath(location)) if colon and os.path.isabs(location) else source


def stamp() -> str:
    """Return the version and the date, such as `"keras_vit 0.1.0 · 22 November 2026"`."""
    return f"keras_vit {version.__version__} · {datetime.date.today():%d %B %Y}"


def model_title(model: Mapping[str, Any]) -> str:
    """Return the name of a recipe's variant, or the number of layers if the sizes differ from the variant's."""
    name, sizes = str(model["variant"]), model.get("arguments", {})
    if name not in models.VIT or not any(sizes.get(size) for size in _SIZES):
        return name
    layers = sizes.get("num_layers") or models.VIT[name].num_layers
    return f"ViT of {layers} layer{'s' if layers != 1 else ''}"
