"""The figure that a training run writes."""

from collections.abc import Sequence

import numpy as np

from keras_vit.inspection.plots import _matplotlib
from keras_vit.inspection.plots._matplotlib import fit
from keras_vit.inspection.plots.curves import draw_metric
from keras_vit.inspection.plots.overlays import show_image

MAX_IMAGES = 18
_COLUMNS = 6
_TITLE_WIDTH = 22  # letters above an image
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
) -> None:
    """Draw the curves of a run, and some of its test images with their predictions.

    Args:
        path: File to write; its extension decides the format (`.png`, `.svg`, `.pdf`).
        metrics: Lines of `metrics.jsonl`.
        images: `[n, height, width, channels]`, uint8, or float in any range, mistakes first. The first 18 are drawn.
        true_names: Class of each image.
        predicted_names: Predicted class of each image.
        confidences: Probability of the predicted class, in [0, 1].
        title: Headline, such as the accuracy.
        subtitle: Line below it.

    Example:
    >>> metrics = [{"step": 1, "loss": 2.3, "accuracy": 0.1}, {"step": 1, "eval_accuracy": 0.2}]
    >>> draw_report("report.png", metrics, images[:2], ["cat", "dog"], ["cat", "cat"], [0.9, 0.6])
    """
    count = min(len(images), MAX_IMAGES)
    rows = -(-count // _COLUMNS)
    heights = [0.8, 3.5, 0.35 + 1.8 * rows]
    figure = _matplotlib.new_figure(12, sum(heights))
    head, charts, grid = figure.subfigures(3, 1, height_ratios=heights)
    head.text(0.015, 0.62, fit(title, 55), fontsize=18, fontweight="bold", color=_RIGHT, va="center")
    head.text(0.015, 0.12, fit(subtitle, 120), fontsize=10, color=_QUIET, va="center")
    loss, accuracy = charts.subplots(1, 2)
    draw_metric(loss, metrics, "loss")
    loss.set_title("Only training has augmentation and label smoothing", fontsize=8, color=_QUIET)
    draw_metric(accuracy, metrics, "accuracy")
    evaluations = [(line["eval_accuracy"], line["step"]) for line in metrics if "eval_accuracy" in line]
    if evaluations:  # the checkpoint of the best one is kept
        best, step = max(evaluations, key=lambda pair: pair[0])
        accuracy.plot([step], [best], "o", markersize=10, fillstyle="none", color=_WRONG)
        accuracy.set_title(f"Best evaluation: {100 * best:.2f} % at step {step:,}", fontsize=8, color=_QUIET)
    is_right = [true == predicted for true, predicted in zip(true_names, predicted_names, strict=True)]
    heading = "Evaluation images" if all(is_right) else "Evaluation images, mistakes first"
    grid.suptitle(heading, x=0.015, ha="left", fontsize=11, fontweight="bold")
    panels = grid.subplots(max(rows, 1), _COLUMNS, squeeze=False).ravel()
    for axes in panels:
        axes.axis("off")
    for index, (axes, image) in enumerate(zip(panels[:count], images[:count], strict=True)):
        suffix = f" · {100 * confidences[index]:.0f} %"
        caption = fit(predicted_names[index], _TITLE_WIDTH - len(suffix)) + suffix
        caption += "" if is_right[index] else f"\n{fit(f'(is {true_names[index]})', _TITLE_WIDTH)}"
        show_image(axes, image)
        axes.set_title(caption, fontsize=8, color=_RIGHT if is_right[index] else _WRONG)
    _matplotlib.save(figure, path)
