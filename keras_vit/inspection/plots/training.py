"""Figures of a training run: its curves, some predictions, and reconstructions of pre-training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.inspection.plots import _matplotlib
from keras_vit.inspection.plots._matplotlib import fit
from keras_vit.inspection.plots.overlays import show_image
from keras_vit.util.metrics import Metric

# Metrics of classification: loss and score.
CLASSIFICATION = (Metric("loss", larger_is_better=False, unit="nats"), Metric("accuracy", unit="%"))
MAX_IMAGES = 18
_COLUMNS, _EXAMPLES = 6, 3  # predictions, and examples of a pre-training, side by side
_TITLE_WIDTH = 22  # letters in the title of an image
_RIGHT, _WRONG, _QUIET = _matplotlib.BLUE, _matplotlib.VERMILION, "#55606F"


@_matplotlib.in_style
def training_curve(metrics: Sequence[dict], quantity: Metric, title: str = "") -> Any:
    """Draw a metric over the steps of a run, in training and in evaluation.

    Args:
        metrics: Lines of `metrics.jsonl`.
        quantity: Metric to draw, such as `Metric("loss", unit="nats")`.
        title: Title of the figure.

    Example:
    >>> metrics = [{"step": 1, "loss": 2.3}, {"step": 2, "loss": 1.9}, {"step": 2, "eval_loss": 2.0}]
    >>> figure = training_curve(metrics, Metric("loss", unit="nats"))
    """
    figure = _matplotlib.new_figure(4.2, 2.8)
    axes = figure.subplots()
    draw_metric(axes, metrics, quantity)
    axes.set_title(title)
    return figure


def draw_metric(axes: Any, metrics: Sequence[dict], quantity: Metric) -> None:
    """Draw the curves of a metric on existing axes."""
    curves = (
        (f"eval_{quantity.name}", "evaluation", _matplotlib.VERMILION),
        (quantity.name, "training", _matplotlib.BLUE),  # drawn on top
    )
    for name, label, color in curves:
        values = {line["step"]: line[name] for line in metrics if name in line}
        if values:
            style = "o-" if len(values) < 30 else "-"
            axes.plot(*zip(*sorted(values.items()), strict=True), style, color=color, label=label, markersize=3)
    axes.set_xlabel("step")
    unit = "" if quantity.unit in ("", "%") else f" ({quantity.unit})"
    axes.set_ylabel(f"{quantity.name.replace('_', ' ')}{unit}")
    axes.grid(alpha=0.3)
    if len(axes.lines) > 1:
        axes.legend(frameon=False)


@_matplotlib.in_style
def draw_report(
    path: str,
    metrics: Sequence[dict],
    images: np.ndarray,
    captions: Sequence[str],
    right: Sequence[bool] | None = None,
    quantities: Sequence[Metric] = CLASSIFICATION,
    title: str = "",
    subtitle: str = "",
) -> None:
    """Draw the curves of a run and some evaluation images with their predictions.

    Args:
        path: File to write. The extension sets the format: `.png`, `.svg` or `.pdf`.
        metrics: Lines of `metrics.jsonl`. Without a second step, no curves are drawn.
        images: `[n, height, width, channels]`, uint8, or float in any range, mistakes first. The first 18 are drawn.
        captions: Prediction for each image, in one or two lines. Long lines are shortened before their last ` · `.
        right: Whether each prediction is correct, or None if predictions are neither right nor wrong.
        quantities: Metrics to plot, the loss and the score.
        title: Title, such as the accuracy.
        subtitle: Line below the title.
    """
    count = min(len(images), MAX_IMAGES)
    rows = -(-count // _COLUMNS)
    heights = [0.8, *([3.5] if has_curves(metrics) else []), 0.35 + 1.8 * rows]
    figure = _matplotlib.new_figure(12, sum(heights))
    head, *charts, grid = figure.subfigures(len(heights), 1, height_ratios=heights)
    head.text(0.015, 0.62, fit(title, 55), fontsize=18, fontweight="bold", color=_RIGHT, va="center")
    head.text(0.015, 0.12, fit(subtitle, 120), fontsize=10, color=_QUIET, va="center")
    for part in charts:
        _draw_curves(part, metrics, *quantities)
    heading = "Evaluation images" if right is None or all(right) else "Evaluation images, mistakes first"
    grid.suptitle(heading, x=0.015, ha="left", fontsize=11, fontweight="bold")
    panels = grid.subplots(max(rows, 1), _COLUMNS, squeeze=False).ravel()
    for axes in panels:
        axes.axis("off")
    for index, (axes, image) in enumerate(zip(panels[:count], images[:count], strict=True)):
        show_image(axes, image)
        color = _RIGHT if right is None or right[index] else _WRONG
        axes.set_title(_fitted(captions[index]), fontsize=8, color=color)
    _matplotlib.save(figure, path)


def has_curves(metrics: Sequence[dict]) -> bool:
    """Return whether there is more than one step. If a fitted head is the result, there is only step 0."""
    return len({line["step"] for line in metrics}) > 1


def _draw_curves(figure: Any, metrics: Sequence[dict], loss: Metric, score: Metric) -> None:
    """Draw the loss and the score of a run, and mark the best evaluation, whose checkpoint is kept."""
    of_loss, of_score = figure.subplots(1, 2)
    draw_metric(of_loss, metrics, loss)
    of_loss.set_title("Only training has augmentation", fontsize=8, color=_QUIET)
    draw_metric(of_score, metrics, score)
    name = f"eval_{score.name}"
    evaluations = [(line[name], line["step"]) for line in metrics if name in line]
    if evaluations:
        best, step = max(evaluations, key=lambda pair: score.goodness(pair[0]))
        of_score.plot([step], [best], "o", markersize=10, fillstyle="none", color=_WRONG)
        of_score.set_title(f"Best evaluation: {score.text(best)} at step {step:,}", fontsize=8, color=_QUIET)


def _fitted(caption: str) -> str:
    """Shorten the lines of a caption to fit above an image. The text after the last ` · ` is kept."""
    lines = []
    for line in caption.split("\n"):
        text, dot, end = line.rpartition(" · ")
        lines.append(fit(text, _TITLE_WIDTH - len(dot + end)) + dot + end if dot else fit(line, _TITLE_WIDTH))
    return "\n".join(lines)


@_matplotlib.in_style
def reconstructions(
    images: Mapping[str, np.ndarray],
    title: str = "",
    limit: int = 12,
    metrics: Sequence[dict] = (),
    quantities: Sequence[Metric] = (Metric("loss"), Metric("explained")),
) -> Any:
    """Draw images with their visible patches and reconstructions, below the curves of the run.

    Args:
        images: Maps `"input"`, `"visible"` and `"reconstruction"` to images, uint8 `[n, height, width, channels]`.
        title: Title of the figure.
        limit: Maximum number of images.
        metrics: Lines of `metrics.jsonl`. Without lines, no curves are drawn.
        quantities: Metrics to plot, the loss and the score.

    Example:
    >>> images = {name: np.zeros((3, 8, 8, 1), "uint8") for name in ("input", "visible", "reconstruction")}
    >>> figure = reconstructions(images, metrics=[{"step": 1, "loss": 0.5}])
    """
    count = min(limit, *(len(values) for values in images.values()))
    rows, heights = -(-count // _EXAMPLES), [3.6] if metrics else []
    heights += [max(1.3 * rows, 0.1)]
    figure = _matplotlib.new_figure(11, sum(heights) + (0 if metrics else 0.3))
    *charts, grid = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part in charts:
        for axes, quantity in zip(part.subplots(1, 2), quantities, strict=True):
            draw_metric(axes, metrics, quantity)
    if rows:
        panels = grid.subplots(rows, _EXAMPLES * len(images), squeeze=False)
        for axes in panels.flat:
            axes.axis("off")
        for index in range(count):
            row, column = divmod(index, _EXAMPLES)
            for offset, (name, values) in enumerate(images.items()):
                axes = panels[row][column * len(images) + offset]
                show_image(axes, values[index])
                axes.set_title(name if row == 0 else "", fontsize=8)
    figure.suptitle(fit(title, 110))
    return figure
