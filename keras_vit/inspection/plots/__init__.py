"""Figures drawn with matplotlib. Each function returns a figure, and `save` writes it as PNG, SVG or PDF."""

from keras_vit.inspection.plots._matplotlib import fit, heat_colors, require_matplotlib, save, svg
from keras_vit.inspection.plots.figures import (
    attention_distance,
    embedding_filters,
    layer_similarity,
    position_similarity,
    predicted_against_true,
)
from keras_vit.inspection.plots.overlays import attention_overlays, encode_image, overlay, to_rgb
from keras_vit.inspection.plots.training import (
    CLASSIFICATION,
    MAX_IMAGES,
    draw_report,
    reconstructions,
    training_curve,
)

__all__ = [
    "CLASSIFICATION",
    "MAX_IMAGES",
    "attention_distance",
    "attention_overlays",
    "draw_report",
    "embedding_filters",
    "encode_image",
    "fit",
    "heat_colors",
    "layer_similarity",
    "overlay",
    "position_similarity",
    "predicted_against_true",
    "reconstructions",
    "require_matplotlib",
    "save",
    "svg",
    "to_rgb",
    "training_curve",
]
