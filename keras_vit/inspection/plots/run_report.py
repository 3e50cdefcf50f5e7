"""The figure that a training run writes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.inspection.plots import _matplotlib
from keras_vit.inspection.plots._text import fit, prediction
from keras_vit.inspection.plots.figures import curve
from keras_vit.inspection.plots.overlays import show_image

MAX_IMAGES = 18
_COLUMNS = 6
_TITLE_WIDTH = 22  # letters above an image
_NAME_WIDTH = 12  # letters of a class name beside the confusion matrix
_MAX_MATRIX = 20  # of more classes, the weakest are listed
_MAX_NUMBERS = 12  # of more classes, the matrix has colors only
_MAX_LISTED = 10
_RIGHT, _WRONG, _QUIET = _matplotlib.BLUE, _matplotlib.VERMILION, "#55606F"


@_matplotlib.in_style
def draw_report(
    path: str,
    metrics: Sequence[dict],
    images: np.ndarray,
    true_names: Sequence[str],
    predicted_names: Sequence[str],
    confidences: Sequence[float],
    title: str = "",
    subtitle: str = "",
    confusion: np.ndarray | None = None,
    class_names: Sequence[str] = (),
) -> None:
    """Draw the curves of a run, its confusions, and some of its test images with their predictions.

    Args:
        path: File to write; its extension decides the format (`.png`, `.svg`, `.pdf`).
        metrics: Lines of `metrics.jsonl`.
        images: `[n, height, width, channels]`, uint8, or float in any range, mistakes first. The first 18 are drawn.
        true_names: Class of each image.
        predicted_names: Predicted class of each image.
        confidences: Probability of the predicted class, in [0, 1].
        title: Headline, such as the accuracy.
        subtitle: Line below it.
        confusion: Counts `[true class, predicted class]`, or None.
        class_names: Name of each class of `confusion`.

    Raises:
        ImportError: If matplotlib is not installed.

    Example:
    >>> metrics = [{"step": 1, "loss": 2.3, "accuracy": 0.1}, {"step": 1, "eval_accuracy": 0.2}]
    >>> draw_report("report.png", metrics, images[:2], ["cat", "dog"], ["cat", "cat"], [0.9, 0.6])
    """
    count = min(len(images), MAX_IMAGES)
    rows = -(-count // _COLUMNS)
    heights = [0.8, 3.5, 0.35 + 1.8 * rows]
    figure = _matplotlib.new_figure(12, sum(heights))
    head, charts, grid = figure.subfigures(3, 1, height_ratios=heights)
    head.text(0.015, 0.62, fit(title, 55, lines=1), fontsize=18, fontweight="bold", color=_RIGHT, va="center")
    head.text(0.015, 0.12, fit(subtitle, 120, lines=1), fontsize=10, color=_QUIET, va="center")
    axes = charts.subplots(1, 2 if confusion is None else 3)
    curve(axes[0], metrics, "loss", "eval_loss", "loss (nats)")
    axes[0].set_title("Only training has augmentation and label smoothing", fontsize=8, color=_QUIET)
    curve(axes[1], metrics, "accuracy", "eval_accuracy", "accuracy")
    _mark_best(axes[1], metrics)
    if confusion is not None:
        draw = _draw_confusion if len(class_names) <= _MAX_MATRIX else _draw_weakest
        draw(axes[2], np.asarray(confusion), class_names)
    if rows:
        _draw_images(grid, images[:count], true_names, predicted_names, confidences)
    _matplotlib.save(figure, path)


def _mark_best(axes: Any, metrics: Sequence[dict]) -> None:
    """Mark the evaluation with the best accuracy, whose checkpoint is kept."""
    found = [(line["eval_accuracy"], line["step"]) for line in metrics if "eval_accuracy" in line]
    if found:
        accuracy, step = max(found, key=lambda pair: pair[0])
        axes.plot([step], [accuracy], "o", markersize=10, fillstyle="none", color=_WRONG)
        axes.set_title(f"Best evaluation: {100 * accuracy:.2f} % at step {step:,}", fontsize=8, color=_QUIET)


def _draw_confusion(axes: Any, confusion: np.ndarray, class_names: Sequence[str]) -> None:
    """Draw the confusion matrix: shares of the true class in blue where they are right, else in orange."""
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    diagonal = np.eye(len(shares), dtype=bool)
    mistakes = np.where(diagonal, 0, shares)
    strength = 0.85 * np.where(diagonal, shares, mistakes / max(mistakes.max(initial=0), 0.1))[..., None]
    blue, orange = (np.array([int(code[i : i + 2], 16) for i in (1, 3, 5)]) / 255 for code in (_RIGHT, _WRONG))
    axes.imshow(1 - strength * (1 - np.where(diagonal[..., None], blue, orange)), interpolation="none")
    names = [fit(name, _NAME_WIDTH, lines=1) for name in class_names]
    upright = max(map(len, names)) > 3
    axes.set_xticks(range(len(names)), names, rotation=90 if upright else 0, fontsize=8)
    rates = [f"{name} · {100 * share:.0f} %" for name, share in zip(names, np.diag(shares), strict=True)]
    axes.set_yticks(range(len(names)), rates, fontsize=8)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xlabel("predicted class")
    axes.set_title("Confusion: rows are true classes, with their accuracy", fontsize=8, color=_QUIET)
    for row, column in np.argwhere(confusion > 0) if len(names) <= _MAX_NUMBERS else ():
        color = "white" if strength[row, column] > 0.5 else "black"
        axes.text(column, row, f"{confusion[row, column]:,}", ha="center", va="center", fontsize=7, color=color)


def _draw_weakest(axes: Any, confusion: np.ndarray, class_names: Sequence[str]) -> None:
    """Draw the accuracy of the classes that are predicted worst."""
    counts = confusion.sum(axis=1)
    shares = np.where(counts > 0, np.diag(confusion) / np.maximum(counts, 1), np.inf)
    order = [index for index in np.argsort(shares, kind="stable")[:_MAX_LISTED].tolist() if counts[index]][::-1]
    axes.barh(range(len(order)), 100 * shares[order], color=_RIGHT)
    axes.set_yticks(range(len(order)), [fit(class_names[index], 24, lines=1) for index in order], fontsize=8)
    axes.set_xlim(0, 100)
    axes.set_xlabel("accuracy (%)")
    axes.set_title(f"The {len(order)} weakest classes of {len(class_names):,}", fontsize=8, color=_QUIET)


def _draw_images(
    figure: Any,
    images: np.ndarray,
    true_names: Sequence[str],
    predicted_names: Sequence[str],
    confidences: Sequence[float],
) -> None:
    """Draw images with their predictions, blue if they are right."""
    wrong = any(true != predicted for true, predicted in zip(true_names, predicted_names, strict=True))
    heading = "Evaluation images, mistakes first" if wrong else "Evaluation images"
    figure.suptitle(heading, x=0.015, ha="left", fontsize=11, fontweight="bold")
    panels = figure.subplots(-(-len(images) // _COLUMNS), _COLUMNS, squeeze=False).flat
    for axes in panels:
        axes.axis("off")
    for index, (axes, image) in enumerate(zip(figure.axes, images, strict=False)):
        right = true_names[index] == predicted_names[index]
        caption = prediction(predicted_names[index], confidences[index], _TITLE_WIDTH)
        show_image(axes, image)
        axes.set_title(
            caption if right else f"{caption}\n{fit(f'(is {true_names[index]})', _TITLE_WIDTH, lines=1)}",
            fontsize=8,
            color=_RIGHT if right else _WRONG,
        )
