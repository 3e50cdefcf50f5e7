"""Figure of pre-training: images, their visible patches, and the reconstructions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.inspection.plots import _matplotlib
from keras_vit.inspection.plots._matplotlib import fit
from keras_vit.inspection.plots.curves import draw_metric
from keras_vit.inspection.plots.overlays import show_image
from keras_vit.util.metrics import Metric

_COLUMNS = 3  # examples side by side


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
    rows, heights = -(-count // _COLUMNS), [3.6] if metrics else []
    heights += [max(1.3 * rows, 0.1)]
    figure = _matplotlib.new_figure(11, sum(heights) + (0 if metrics else 0.3))
    *charts, grid = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part in charts:
        for axes, quantity in zip(part.subplots(1, 2), quantities, strict=True):
            draw_metric(axes, metrics, quantity)
    if rows:
        panels = grid.subplots(rows, _COLUMNS * len(images), squeeze=False)
        for axes in panels.flat:
            axes.axis("off")
        for index in range(count):
            row, column = divmod(index, _COLUMNS)
            for offset, (name, values) in enumerate(images.items()):
                axes = panels[row][column * len(images) + offset]
                show_image(axes, values[index])
                axes.set_title(name if row == 0 else "", fontsize=8)
    figure.suptitle(fit(title, 110))
    return figure
