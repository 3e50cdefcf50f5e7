"""Figures of what a model learned, and of how it learned."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.inspection.plots import _matplotlib

_LARGEST_MOSAIC = 14  # panels on a side that can still be told apart in print


def mosaic(panels: np.ndarray, gap: int = 1) -> np.ndarray:
    """Lays panels side by side.

    Args:
        panels: `[rows, columns, height, width, ...]`.
        gap: Pixels between two of them, NaN in the result.

    Returns:
        `[rows * (height + gap) - gap, columns * (width + gap) - gap, ...]`.
    """
    rows, columns, height, width, *rest = panels.shape
    result = np.full((rows, height + gap, columns, width + gap, *rest), np.nan, np.float32)
    result[:, :height, :, :width] = np.moveaxis(panels, 1, 2)
    return result.reshape(rows * (height + gap), columns * (width + gap), *rest)[: -gap or None, : -gap or None]


@_matplotlib.in_style
def embedding_filters(filters: np.ndarray, title: str = "Embedding filters", columns: int = 7) -> Any:
    """Draws what `inspection.embedding_filters` returns, each component scaled by itself; grey is zero.

    Args:
        filters: `[k, height, width, channels]`; of other than 1 or 3 channels their mean is shown.
        title: Of the figure.
        columns: Components in a row.
    """
    filters = np.asarray(filters, np.float32)
    if filters.shape[-1] not in (1, 3):
        filters = filters.mean(axis=-1, keepdims=True)
    columns = min(columns, len(filters))
    rows = -(-len(filters) // columns)
    largest = np.abs(filters).max(axis=(1, 2, 3), keepdims=True)
    scaled = 0.5 + 0.5 * filters / np.maximum(largest, 1e-12)
    factor = max(16 // max(filters.shape[1:3]), 1)  # tiny filters are enlarged, for the gap between them to be narrow
    scaled = scaled.repeat(factor, axis=1).repeat(factor, axis=2)
    missing = np.full((rows * columns - len(scaled), *scaled.shape[1:]), np.nan, np.float32)
    panels = np.concatenate([scaled, missing]).reshape(rows, columns, *scaled.shape[1:])
    picture = mosaic(panels, gap=max(scaled.shape[1] // 5, 1))
    picture = np.where(np.isnan(picture), 1.0, picture)
    figure = _matplotlib.new_figure(min(0.75 * columns + 0.4, 8), min(0.75 * rows + 0.7, 9))
    axes = figure.subplots()
    image = picture[..., 0] if picture.shape[-1] == 1 else picture
    axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="none")
    axes.set_axis_off()
    axes.set_title(title)
    return figure


@_matplotlib.in_style
def position_similarity(similarity: np.ndarray, title: str = "Position embedding similarity") -> Any:
    """Draws what `inspection.position_similarity` returns, a map for each patch at the patch's own place.

    Args:
        similarity: `[h, w, h, w]`. Of large grids every n-th patch is shown.
        title: Of the figure.
    """
    height, width = similarity.shape[:2]
    step = max(-(-max(height, width) // _LARGEST_MOSAIC), 1)
    rows, columns = np.arange(step // 2, height, step), np.arange(step // 2, width, step)
    panels = similarity[rows][:, columns]  # [rows, columns, h, w]
    gap = max(round(0.08 * max(height, width)), 1)
    scale = 5.4 / max(len(rows), len(columns))
    figure = _matplotlib.new_figure(scale * len(columns) + 1.5, scale * len(rows) + 0.9)
    axes = figure.subplots()
    image = axes.imshow(
        mosaic(panels, gap),
        cmap=_matplotlib.SEQUENTIAL,
        vmin=min(-1.0, similarity.min()),
        vmax=1,
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
    bar = figure.colorbar(image, ax=axes, shrink=0.85)
    bar.set_label("cosine similarity")
    return figure


@_matplotlib.in_style
def attention_distance(distances: np.ndarray, title: str = "Attention distance", num_images: int | None = None) -> Any:
    """Draws what `inspection.attention_distance` returns: a dot for each head, a line through the layers' means.

    Args:
        distances: `[layers, heads]`, in pixels.
        title: Of the figure.
        num_images: Over how many images it was averaged, for the label.
    """
    layers, heads = distances.shape
    figure = _matplotlib.new_figure(5.2, 3.6)
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
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(framealpha=0.85, edgecolor="none")
    axes.set_title(title if num_images is None else f"{title} ({num_images} image{'s' if num_images != 1 else ''})")
    return figure


@_matplotlib.in_style
def layer_similarity(
    values: np.ndarray, layers: Sequence[str], other_layers: Sequence[str], labels: tuple[str, str] = ("model", "other")
) -> Any:
    """Draws what `inspection.layer_similarity` returns.

    Args:
        values: CKA, `[layers, other layers]`.
        layers: Names of the rows.
        other_layers: Names of the columns.
        labels: Names of the two models.
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
def training_curves(metrics: Sequence[dict], title: str = "Training") -> Any:
    """Draws loss, accuracy and learning rate of a run.

    Args:
        metrics: Lines of `metrics.jsonl`.
        title: Of the figure.
    """
    figure = _matplotlib.new_figure(9.5, 2.8)
    loss_axes, accuracy_axes, rate_axes = figure.subplots(1, 3)
    curve(loss_axes, metrics, "loss", "eval_loss", "loss (nats)")
    curve(accuracy_axes, metrics, "accuracy", "eval_accuracy", "accuracy")
    curve(rate_axes, metrics, "learning_rate", None, "learning rate")
    figure.suptitle(title)
    return figure


def curve(axes: Any, metrics: Sequence[dict], training: str, evaluation: str | None, label: str) -> None:
    """Draws two quantities of a run over its steps."""
    drawn = 0
    for name, caption, style in ((training, "training", "-"), (evaluation, "evaluation", "o-")):
        points = [(line["step"], line[name]) for line in metrics if name in line]
        if points:
            color = _matplotlib.BLUE if name == training else _matplotlib.VERMILION
            axes.plot(*zip(*points, strict=True), style, color=color, label=caption, markersize=4)
            drawn += 1
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    if drawn > 1:
        axes.legend(frameon=False)
