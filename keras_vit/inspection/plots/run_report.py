"""Figure of a training run: its curves and some predictions."""

from collections.abc import Sequence

import numpy as np

from keras_vit.inspection.plots import _matplotlib
from keras_vit.inspection.plots._matplotlib import fit
from keras_vit.inspection.plots.curves import CLASSIFICATION, draw_metric
from keras_vit.inspection.plots.overlays import show_image
from keras_vit.util.metrics import Metric

MAX_IMAGES = 18
_COLUMNS = 6
_TITLE_WIDTH = 22  # letters in the title of an image
_RIGHT, _WRONG, _QUIET = _matplotlib.BLUE, _matplotlib.VERMILION, "#55606F"


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
    r"""Draw the curves of a run and some evaluation images with their predictions.

    Args:
        path: File to write. The extension sets the format: `.png`, `.svg` or `.pdf`.
        metrics: Lines of `metrics.jsonl`.
        images: `[n, height, width, channels]`, uint8, or float in any range, mistakes first. The first 18 are drawn.
        captions: Prediction for each image, in one or two lines. Long lines are shortened before their last ` · `.
        right: Whether each prediction is correct, or None if predictions are neither right nor wrong.
        quantities: Metrics to plot, the loss and the score.
        title: Headline, such as the accuracy.
        subtitle: Line below the headline.

    Example:
    >>> metrics = [{"step": 1, "loss": 2.3, "accuracy": 0.1}, {"step": 1, "eval_accuracy": 0.2}]
    >>> draw_report("report.png", metrics, images[:2], ["cat · 90%", "cat · 60%\n(is dog)"], [True, False])
    """
    count = min(len(images), MAX_IMAGES)
    rows = -(-count // _COLUMNS)
    heights = [0.8, 3.5, 0.35 + 1.8 * rows]
    figure = _matplotlib.new_figure(12, sum(heights))
    head, charts, grid = figure.subfigures(3, 1, height_ratios=heights)
    head.text(0.015, 0.62, fit(title, 55), fontsize=18, fontweight="bold", color=_RIGHT, va="center")
    head.text(0.015, 0.12, fit(subtitle, 120), fontsize=10, color=_QUIET, va="center")
    loss, score = quantities
    of_loss, of_score = charts.subplots(1, 2)
    draw_metric(of_loss, metrics, loss)
    of_loss.set_title("Only training has augmentation", fontsize=8, color=_QUIET)
    draw_metric(of_score, metrics, score)
    name = f"eval_{score.name}"
    evaluations = [(line[name], line["step"]) for line in metrics if name in line]
    if evaluations:  # mark the best evaluation, whose checkpoint is kept
        best, step = max(evaluations, key=lambda pair: score.goodness(pair[0]))
        of_score.plot([step], [best], "o", markersize=10, fillstyle="none", color=_WRONG)
        of_score.set_title(f"Best evaluation: {score.text(best)} at step {step:,}", fontsize=8, color=_QUIET)
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


def _fitted(caption: str) -> str:
    """Shorten the lines of a caption to fit above an image. The text after the last ` · ` is kept."""
    lines = []
    for line in caption.split("\n"):
        text, dot, end = line.rpartition(" · ")
        lines.append(fit(text, _TITLE_WIDTH - len(dot + end)) + dot + end if dot else fit(line, _TITLE_WIDTH))
    return "\n".join(lines)
