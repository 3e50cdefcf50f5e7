"""The figure that a training run writes."""

from collections.abc import Sequence

import numpy as np

from keras_vit.inspection.plots import _matplotlib
from keras_vit.inspection.plots._text import fit, prediction
from keras_vit.inspection.plots.figures import curve
from keras_vit.inspection.plots.overlays import show_image

_TITLE_WIDTH = 22  # letters above an image
_RIGHT, _WRONG = _matplotlib.BLUE, _matplotlib.VERMILION


@_matplotlib.in_style
def draw_report(
    path: str,
    metrics: Sequence[dict],
    images: np.ndarray,
    true_names: Sequence[str],
    predicted_names: Sequence[str],
    confidences: Sequence[float],
    title: str = "",
) -> None:
    """Draw the curves of a run, and some of its test images with their predictions.

    Args:
        path: File to write; its extension decides the format (`.png`, `.svg`, `.pdf`).
        metrics: Lines of `metrics.jsonl`.
        images: `[n, height, width, channels]`, uint8, or float in any range.
        true_names: Class of each image.
        predicted_names: Predicted class of each image.
        confidences: Probability of the predicted class, in [0, 1].
        title: Title of the figure.

    Raises:
        ImportError: If matplotlib is not installed.

    Example:
    >>> metrics = [{"step": 1, "loss": 2.3, "accuracy": 0.1}, {"step": 1, "eval_accuracy": 0.2}]
    >>> draw_report("report.png", metrics, images[:2], ["cat", "dog"], ["cat", "cat"], [0.9, 0.6])
    """
    columns = 6
    count = min(len(images), 3 * columns)
    rows = -(-count // columns)
    figure = _matplotlib.new_figure(11, 3.6 + 1.8 * rows)
    parts = figure.subfigures(2, 1, height_ratios=[3.6, max(1.8 * rows, 0.1)])
    loss_axes, accuracy_axes = parts[0].subplots(1, 2)
    curve(loss_axes, metrics, "loss", "eval_loss", "loss (nats)")
    curve(accuracy_axes, metrics, "accuracy", "eval_accuracy", "accuracy")
    panels = parts[1].subplots(rows, columns, squeeze=False).flat if rows else []
    for index, axes in enumerate(panels):
        axes.axis("off")
        if index < count:
            right = true_names[index] == predicted_names[index]
            caption = prediction(predicted_names[index], confidences[index], _TITLE_WIDTH)
            show_image(axes, images[index])
            axes.set_title(
                caption if right else f"{caption}\n{fit(f'(is {true_names[index]})', _TITLE_WIDTH, lines=1)}",
                fontsize=8,
                color=_RIGHT if right else _WRONG,
            )
    figure.suptitle(fit(title, 110))
    _matplotlib.save(figure, path)
