"""Figures. The only module that imports matplotlib, and only when a figure is drawn."""

import importlib
import os
from collections.abc import Sequence

import numpy as np

_RIGHT, _WRONG = "#0072B2", "#D55E00"  # blue and vermilion, told apart by colour-blind readers


def require_matplotlib():
    """Returns `matplotlib.figure`, without touching the process-wide state of `pyplot`.

    Raises:
        ImportError: naming the extra to install.
    """
    try:
        return importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise ImportError(
            "Figures need matplotlib. Install it with: pip install 'keras-vision-transformers[plots]'"
        ) from error


def draw_report(
    path: str,
    metrics: Sequence[dict],
    images: np.ndarray,
    true_names: Sequence[str],
    predicted_names: Sequence[str],
    confidences: Sequence[float],
    title: str = "",
) -> None:
    """Draws the curves of a run, and some of its test images with their predictions.

    Args:
        path: file to write; its ending decides the format (`.png`, `.svg`, `.pdf`).
        metrics: lines of `metrics.jsonl`.
        images: `[n, height, width, channels]`, uint8, or float in any range.
        true_names: class of each image.
        predicted_names: class that the model gives each image.
        confidences: probability of that class, in [0, 1].
        title: of the whole figure.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    matplotlib_figure = require_matplotlib()
    columns = 6
    count = min(len(images), 3 * columns)
    rows = -(-count // columns)
    figure = matplotlib_figure.Figure(figsize=(11, 3.6 + 1.8 * rows), layout="constrained")
    parts = figure.subfigures(2, 1, height_ratios=[3.6, max(1.8 * rows, 0.1)])
    loss_axes, accuracy_axes = parts[0].subplots(1, 2)
    _curve(loss_axes, metrics, "loss", "eval_loss", "loss (nats)")
    _curve(accuracy_axes, metrics, "accuracy", "eval_accuracy", "accuracy")
    pictures = parts[1].subplots(rows, columns, squeeze=False).flat if rows else []
    for index, axes in enumerate(pictures):
        axes.axis("off")
        if index < count:
            right = true_names[index] == predicted_names[index]
            caption = f"{predicted_names[index]} {confidences[index]:.0%}"
            _picture(axes, images[index])
            axes.set_title(
                caption if right else f"{caption}\n(is {true_names[index]})",
                fontsize=8,
                color=_RIGHT if right else _WRONG,
            )
    figure.suptitle(title)
    save(figure, path)


def save(figure, path: str) -> None:
    """Writes a figure in one piece: `path` holds either all of it or what it held before."""
    root, ending = os.path.splitext(path)
    temporary = f"{root}.{os.getpid()}.tmp{ending}"
    figure.savefig(temporary, dpi=120)
    os.replace(temporary, path)


def _curve(axes, metrics: Sequence[dict], training: str, evaluation: str, label: str) -> None:
    for name, caption, style in ((training, "training", "-"), (evaluation, "evaluation", "o-")):
        points = [(line["step"], line[name]) for line in metrics if name in line]
        if points:
            color = _RIGHT if name == training else _WRONG
            axes.plot(*zip(*points, strict=True), style, color=color, label=caption, markersize=4)
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.legend()


def _picture(axes, image: np.ndarray) -> None:
    image = np.asarray(image, np.float32)
    low, high = (0.0, 255.0) if image.max() > 1.5 else (image.min(), image.max())
    image = np.clip((image - low) / max(high - low, 1e-6), 0.0, 1.0)
    if image.shape[-1] == 1:
        axes.imshow(image[..., 0], cmap="gray_r", vmin=0, vmax=1)
    else:
        axes.imshow(image)
