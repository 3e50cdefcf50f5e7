"""Training curves."""

from collections.abc import Sequence
from typing import Any

from keras_vit.inspection.plots import _matplotlib
from keras_vit.util.metrics import Metric

# Metrics of classification: loss and score.
CLASSIFICATION = (Metric("loss", larger_is_better=False, unit="nats"), Metric("accuracy", unit="%"))


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
