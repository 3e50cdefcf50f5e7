"""Figures of weights, attention, features and predicted values."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.inspection.plots import _matplotlib
from keras_vit.util.metrics import regression_errors

_PANELS = 3
_MANY = 5_000  # with more dots, vector graphics embed the dots as pixels
_LARGEST_MOSAIC = 14  # more panels per side would be too small in print


@_matplotlib.in_style
def embedding_filters(filters: np.ndarray, title: str = "Embedding filters", columns: int = 7) -> Any:
    """Draw the result of `inspection.embedding_filters`. Each component is scaled separately; gray is zero.

    Args:
        filters: `[k, height, width, channels]`. The mean over the channels is shown unless there are 3 channels.
        title: Title of the figure.
        columns: Maximum number of components per row.

    Example:
    >>> figure = embedding_filters(keras_vit.inspection.embedding_filters(model, k=7))
    """
    filters = np.asarray(filters, np.float32)
    if filters.shape[-1] != 3:
        filters = filters.mean(axis=-1, keepdims=True).repeat(3, axis=-1)
    rows = max(-(-len(filters) // columns), round(math.sqrt(len(filters) / 2)))
    columns = -(-len(filters) // rows)
    largest = np.abs(filters).max(axis=(1, 2, 3), keepdims=True)
    scaled = 0.5 + 0.5 * filters / np.maximum(largest, 1e-12)
    height = 4.6 * rows * filters.shape[1] / (columns * filters.shape[2])
    figure = _matplotlib.new_figure(4.6, min(height + (0.3 if title else 0), 6))
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, component in zip(panels, scaled, strict=False):
        axes.imshow(component, interpolation="none")
        axes.spines[:].set(visible=True, color="#b0b0b0", linewidth=0.8)  # outlines white components
        axes.set_xticks([])
        axes.set_yticks([])
    for axes in panels[len(scaled) :]:
        axes.set_axis_off()
    figure.suptitle(title)
    return figure


@_matplotlib.in_style
def position_similarity(similarity: np.ndarray, title: str = "Position embedding similarity") -> Any:
    """Draw the result of `inspection.position_similarity`: a map per patch, at the position of the patch.

    The colors span the similarities between different patches. The similarity of a patch with itself, 1, is the
    brightest color.

    Args:
        similarity: `[h, w, h, w]`. For large grids, only every n-th patch is shown.
        title: Title of the figure.

    Example:
    >>> figure = position_similarity(keras_vit.inspection.position_similarity(model))
    """
    height, width = similarity.shape[:2]
    step = max(-(-max(height, width) // _LARGEST_MOSAIC), 1)
    rows, columns = np.arange(step // 2, height, step), np.arange(step // 2, width, step)
    panels = similarity[rows][:, columns]  # [rows, columns, h, w]
    gap = max(round(0.08 * max(height, width)), 1)
    others = similarity.reshape(height * width, -1)[~np.eye(height * width, dtype=bool)]
    low, high = (float(others.min()), float(others.max())) if others.size else (0.0, 1.0)
    scale = 3.5 / max(len(rows), len(columns))
    figure = _matplotlib.new_figure(scale * len(columns) + 1.1, scale * len(rows) + 0.7)
    axes = figure.subplots()
    mosaic = np.pad(panels, [(0, 0), (0, 0), (0, gap), (0, gap)], constant_values=np.nan)
    mosaic = np.concatenate(np.concatenate(mosaic, axis=1), axis=1)[:-gap, :-gap]  # [rows * (h + gap), ...]
    image = axes.imshow(
        mosaic,
        cmap=_matplotlib.SEQUENTIAL,
        vmin=low,
        vmax=max(high, low + 1e-3),
        interpolation="none",
    )
    labels = slice(None, None, max(len(columns) // 7, 1))
    axes.set_xticks((np.arange(len(columns)) * (width + gap) + (width - 1) / 2)[labels], (columns + 1)[labels])
    axes.set_yticks((np.arange(len(rows)) * (height + gap) + (height - 1) / 2)[labels], (rows + 1)[labels])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xlabel("patch column")
    axes.set_ylabel("patch row")
    axes.set_title(title)
    bar = figure.colorbar(image, ax=axes, shrink=0.85, extend="max")
    bar.set_label("cosine similarity")
    return figure


@_matplotlib.in_style
def attention_distance(distances: np.ndarray, title: str = "Attention distance", num_images: int | None = None) -> Any:
    """Draw the result of `inspection.attention_distance`: a dot per head and a line through the means of the layers.

    Args:
        distances: `[layers, heads]`, in pixels.
        title: Title of the figure.
        num_images: Number of averaged images, shown in the title.

    Example:
    >>> figure = attention_distance(keras_vit.inspection.attention_distance(model, images), num_images=len(images))
    """
    layers, heads = distances.shape
    figure = _matplotlib.new_figure(4.6, 3.2)
    axes = figure.subplots()
    depth = np.arange(1, layers + 1)
    axes.plot(depth, distances.mean(axis=1), color=_matplotlib.VERMILION, label="mean of heads", zorder=1)
    spread = np.linspace(-0.12, 0.12, heads) if heads > 1 else np.zeros(1)
    x = (depth[:, None] + spread).ravel()
    axes.scatter(x, distances.ravel(), s=16, color=_matplotlib.BLUE, alpha=0.75, linewidths=0, label="head", zorder=2)
    ticks = depth[:: max(layers // 12, 1)]
    axes.set_xticks(ticks)
    axes.set_xlabel("layer")
    axes.set_ylabel("mean attention distance (pixels)")
    axes.set_ylim(0, 1.06 * max(float(distances.max()), 1e-6))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(framealpha=0.85, edgecolor="none")
    count = "" if num_images is None else f"{num_images:,} image{'s' if num_images != 1 else ''}"
    axes.set_title(", ".join(text for text in (title, count) if text))
    return figure


@_matplotlib.in_style
def layer_similarity(
    values: np.ndarray, layers: Sequence[str], other_layers: Sequence[str], labels: tuple[str, str] = ("model", "other")
) -> Any:
    """Draw the result of `inspection.layer_similarity`.

    Args:
        values: CKA, `[layers, other layers]`.
        layers: Names of the rows.
        other_layers: Names of the columns.
        labels: Names of the two models.

    Example:
    >>> found = keras_vit.inspection.layer_similarity(model, model, images)
    >>> figure = layer_similarity(found.values, found.layers, found.other_layers)
    """
    rows, columns = values.shape
    figure = _matplotlib.new_figure(min(2.4 + 0.28 * columns, 9), min(1.6 + 0.28 * rows, 9))
    axes = figure.subplots()
    image = axes.imshow(values, cmap=_matplotlib.SEQUENTIAL, vmin=0, vmax=1, origin="lower", interpolation="none")
    axes.set_yticks(range(rows), layers, fontsize=7)
    axes.set_xticks(range(columns), other_layers, rotation=90, fontsize=7)
    axes.set_ylabel(labels[0])
    axes.set_xlabel(labels[1])
    axes.set_title("Similarity of layers")
    figure.colorbar(image, ax=axes, shrink=0.85).set_label("linear CKA")
    return figure


@_matplotlib.in_style
def predicted_against_true(true: np.ndarray, predicted: np.ndarray, names: Sequence[str]) -> Any:
    """Draw predicted values against true values, with one panel per kind of value.

    Exact predictions are on the diagonal.

    Args:
        true: True values, `[N, k]`.
        predicted: Predicted values, `[N, k]`. Pairs with a value that is not finite are ignored.
        names: Names of the values.

    Example:
    >>> true = np.random.default_rng(0).normal(40, 10, (50, 1))
    >>> figure = predicted_against_true(true, true + 1, ["age"])
    """
    errors = regression_errors(true, predicted)
    rows, columns = -(-len(names) // _PANELS), min(len(names), _PANELS)
    figure = _matplotlib.new_figure(3.6 * columns, 3.8 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    for column, (axes, name) in enumerate(zip(panels, names, strict=False)):
        pairs = np.stack([np.asarray(true)[:, column], np.asarray(predicted)[:, column]]).astype(np.float64)  # [2, N]
        x, y = pairs[:, np.isfinite(pairs).all(axis=0)]
        ends = [min(x.min(), y.min()), max(x.max(), y.max())] if len(x) else [0.0, 1.0]
        axes.plot(ends, ends, color=_matplotlib.VERMILION, linewidth=1)
        axes.scatter(x, y, s=10, color=_matplotlib.BLUE, alpha=0.5, linewidths=0, rasterized=len(x) > _MANY)
        title = f"{_matplotlib.fit(name, 30)}: MAE {errors['mae'][column]:.4g}, R2 {errors['r2'][column]:.4g}"
        axes.set(xlabel="true", ylabel="predicted", title=title, box_aspect=1)
    return figure
