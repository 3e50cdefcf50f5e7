"""Figures of pre-training: images, what the model saw of them, and its reconstructions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.inspection.plots import _matplotlib
from keras_vit.inspection.plots._text import fit
from keras_vit.inspection.plots.figures import curve
from keras_vit.inspection.plots.overlays import show_image

_COLUMNS = 3  # examples side by side


@_matplotlib.in_style
def reconstructions(images: Mapping[str, np.ndarray], title: str = "", limit: int = 12) -> Any:
    """Draw input, hidden patches and reconstruction of some images.

    Args:
        images: uint8 `[n, height, width, channels]` by name, such as `{"input", "visible", "reconstruction"}`.
        title: Title of the figure.
        limit: Largest number of images.

    Example:
    >>> images = {name: np.zeros((3, 8, 8, 1), "uint8") for name in ("input", "visible", "reconstruction")}
    >>> figure = reconstructions(images)
    """
    rows = -(-_count(images, limit) // _COLUMNS)
    figure = _matplotlib.new_figure(11, max(1.3 * rows, 0.1) + 0.3)
    _draw(figure, images, limit)
    figure.suptitle(fit(title, 110))
    return figure


@_matplotlib.in_style
def draw_pretraining_report(
    path: str, metrics: Sequence[dict], images: Mapping[str, np.ndarray], score: str, title: str = "", limit: int = 18
) -> None:
    """Draw the curves of a run without labels, and some of its test images with their reconstructions.

    Args:
        path: File to write; its extension decides the format (`.png`, `.svg`, `.pdf`).
        metrics: Lines of `metrics.jsonl`.
        images: See `reconstructions`.
        score: Name of the metric beside the loss.
        title: Title of the figure.
        limit: Largest number of images.

    Raises:
        ImportError: If matplotlib is not installed.

    Example:
    >>> images = {name: np.zeros((3, 8, 8, 1), "uint8") for name in ("input", "visible", "reconstruction")}
    >>> draw_pretraining_report("example/report.png", [{"step": 1, "loss": 0.5}], images, "explained")
    """
    height = max(1.3 * -(-_count(images, limit) // _COLUMNS), 0.1)
    figure = _matplotlib.new_figure(11, 3.6 + height)
    parts = figure.subfigures(2, 1, height_ratios=[3.6, height])
    loss_axes, score_axes = parts[0].subplots(1, 2)
    curve(loss_axes, metrics, "loss", "eval_loss", "loss")
    curve(score_axes, metrics, score, f"eval_{score}", score)
    _draw(parts[1], images, limit)
    figure.suptitle(fit(title, 110))
    _matplotlib.save(figure, path)


def _count(images: Mapping[str, np.ndarray], limit: int) -> int:
    return min(limit, *(len(values) for values in images.values()))


def _draw(figure: Any, images: Mapping[str, np.ndarray], limit: int) -> None:
    count, names = _count(images, limit), list(images)
    rows = -(-count // _COLUMNS)
    if not rows:
        return
    panels = figure.subplots(rows, _COLUMNS * len(names), squeeze=False)
    for axes in panels.flat:
        axes.axis("off")
    for index in range(count):
        row, column = divmod(index, _COLUMNS)
        for offset, name in enumerate(names):
            axes = panels[row][column * len(names) + offset]
            show_image(axes, images[name][index])
            if row == 0:
                axes.set_title(name, fontsize=8)
