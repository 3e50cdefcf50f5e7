"""Figures drawn with matplotlib. Each function returns a figure, and `save` writes it as PNG, SVG or PDF."""

from keras_vit.inspection.plots._matplotlib import fit as fit
from keras_vit.inspection.plots._matplotlib import heat_colors as heat_colors
from keras_vit.inspection.plots._matplotlib import require_matplotlib as require_matplotlib
from keras_vit.inspection.plots._matplotlib import save
from keras_vit.inspection.plots._matplotlib import svg as svg
from keras_vit.inspection.plots.figures import (
    attention_distance,
    embedding_filters,
    layer_similarity,
    position_similarity,
    predicted_against_true,
)
from keras_vit.inspection.plots.overlays import attention_overlays, overlay, to_rgb
from keras_vit.inspection.plots.overlays import encode_image as encode_image
from keras_vit.inspection.plots.training import CLASSIFICATION as CLASSIFICATION
from keras_vit.inspection.plots.training import MAX_IMAGES as MAX_IMAGES
from keras_vit.inspection.plots.training import draw_report as draw_report
from keras_vit.inspection.plots.training import has_curves as has_curves
from keras_vit.inspection.plots.training import reconstructions, training_curve

__all__ = [
    "attention_distance",
    "attention_overlays",
    "embedding_filters",
    "layer_similarity",
    "overlay",
    "position_similarity",
    "predicted_against_true",
    "reconstructions",
    "save",
    "to_rgb",
    "training_curve",
]
