"""Curves over the steps of runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.inspection.plots import _matplotlib

_COLORS = (
    _matplotlib.BLUE,
    _matplotlib.VERMILION,
    _matplotlib.GREEN,
    _matplotlib.ORANGE,
    _matplotlib.PURPLE,
    "#8C6BB1",
    "#A6761D",
    "#7F8C8D",
)
_OTHERS = "#B0B0B0"
MAX_COLORS = len(_COLORS)


@_matplotlib.in_style
def run_curves(groups: Sequence[Sequence[Mapping[int, float]]], title: str = "", label: str = "") -> Any:
    """Draw a quantity of several runs over their steps.

    Args:
        groups: Values by step of each run. Runs of one group are drawn as their mean, and a band from the lowest to the
            highest. The first eight groups have colors; the others are gray.
        title: Title of the figure.
        label: Name of the quantity.

    Example:
    >>> run_curves([[{1: 2.0, 2: 1.0}, {1: 3.0, 2: 1.0}]], "Loss", "loss (nats)").axes[0].get_title()
    'Loss'
    """
    figure = _matplotlib.new_figure(4.2, 2.8)
    axes = figure.subplots()
    _draw(axes, groups, label)
    axes.set_title(title)
    return figure


@_matplotlib.in_style
def training_curve(metrics: Sequence[dict], quantity: str, title: str = "") -> Any:
    """Draw a quantity of a run over its steps, in training and in evaluation.

    Args:
        metrics: Lines of `metrics.jsonl`.
        quantity: `"loss"`, `"accuracy"` or `"learning_rate"`.
        title: Title of the figure.

    Example:
    >>> metrics = [{"step": 1, "loss": 2.3}, {"step": 2, "loss": 1.9}, {"step": 2, "eval_loss": 2.0}]
    >>> figure = training_curve(metrics, "loss")
    """
    figure = _matplotlib.new_figure(4.2, 2.8)
    axes = figure.subplots()
    draw_metric(axes, metrics, quantity)
    axes.set_title(title)
    return figure


def draw_metric(axes: Any, metrics: Sequence[dict], quantity: str) -> None:
    """Draw a quantity of a run, in training and in evaluation."""
    names = {quantity: "training", f"eval_{quantity}": "evaluation"}
    groups = [[{line["step"]: line[name] for line in metrics if name in line}] for name in names]
    label = {"loss": "loss (nats)", "learning_rate": "learning rate"}.get(quantity, quantity)
    _draw(axes, groups, label, tuple(names.values()))


def _draw(
    axes: Any, groups: Sequence[Sequence[Mapping[int, float]]], label: str, names: Sequence[str] | None = None
) -> None:
    for index in reversed(range(len(groups))):  # the first on top
        color = _COLORS[index] if index < MAX_COLORS else _OTHERS
        runs = [run for run in groups[index] if run]
        steps = sorted(set().union(*runs))
        if not steps:
            continue
        values = np.array([[run.get(step, np.nan) for step in steps] for run in runs])
        counts = np.maximum((~np.isnan(values)).sum(axis=0), 1)
        style, name = "o-" if len(steps) < 30 else "-", names[index] if names else None
        mean = np.nansum(values, axis=0) / counts
        axes.plot(steps, mean, style, color=color, label=name, markersize=3, linewidth=1.4)
        if len(runs) > 1:
            band = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
            axes.fill_between(steps, *band, color=color, alpha=0.18, linewidth=0)
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    if names and len(axes.lines) > 1:
        axes.legend(frameon=False)
