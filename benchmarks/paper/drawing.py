"""Figures of the panels, in a light and a dark version."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from keras_vit.inspection import plots
from keras_vit.inspection.plots import _matplotlib

COLORS = ("#3182bd", "#e6550d", "#31a354", "#9e6fd8")  # visible on white and on black
MARKERS = "osD^"
_MOST_TICKS = 6
SCHEMES = {"light": ("#1f2328", "#d0d7de"), "dark": ("#e6edf3", "#3d444d")}  # text, frames
Curve = Mapping[float, Sequence[float]]  # accuracies, one per seed, by the quantity of the x-axis


@_matplotlib.in_style
def lines(panels: Mapping[str, Mapping[str, Curve]], xlabel: str, ylabel: str) -> Any:
    """Draw accuracies over a quantity, with error bars of one standard deviation.

    Args:
        panels: Curves by name for each plot, by the title of the plot. The plots are drawn side by side.
        xlabel: Name of the quantity. The x-axis is logarithmic.
        ylabel: Name of the accuracy.
    """
    figure = _matplotlib.new_figure(5.2 if len(panels) == 1 else 4.2 * len(panels), 3.2)
    row = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, curves) in zip(row, panels.items(), strict=True):
        for index, (name, curve) in enumerate(curves.items()):
            points = [(x, *_mean_and_spread(values)) for x, values in curve.items() if values]
            if points:
                color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
                x, means, spreads = zip(*points, strict=True)
                axes.errorbar(x, means, spreads, color=color, marker=marker, markersize=4, capsize=3, label=name)
        axes.set_xscale("log")
        axes.minorticks_off()
        values = sorted({x for curve in curves.values() for x in curve})
        if len(values) <= _MOST_TICKS:
            axes.set_xticks(values)
        else:
            axes.xaxis.get_major_locator().set_params(subs=(1, 2, 5))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel(xlabel)
        axes.set_title(title)
        axes.grid(True)
    row[0].set_ylabel(ylabel)
    if row[-1].get_legend_handles_labels()[0]:
        row[-1].legend(frameon=False)
    return figure


@_matplotlib.in_style
def dots(scores: Mapping[str, Sequence[float]], xlabel: str) -> Any:
    """Draw the accuracy of each setting in a row: the mean with its standard deviation, and a point per seed.

    Args:
        scores: Accuracies by setting, one per seed.
        xlabel: Name of the accuracy.
    """
    figure = _matplotlib.new_figure(5.2, 0.32 * len(scores) + 0.8)
    axes = figure.subplots()
    for row, values in enumerate(scores.values()):
        if values:
            mean, spread = _mean_and_spread(values)
            axes.errorbar([mean], [row], xerr=[spread], color=COLORS[0], marker="o", markersize=5, capsize=3)
            axes.plot([100 * value for value in values], [row] * len(values), "|", color=COLORS[1], markersize=8)
    axes.set_yticks(range(len(scores)), list(scores))
    axes.set_ylim(len(scores) - 0.5, -0.5)
    axes.set_xlabel(xlabel)
    axes.grid(True, axis="x")
    return figure


def _mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    return 100 * statistics.fmean(values), 100 * statistics.stdev(values) if len(values) > 1 else 0.0


def save(figure: Any, path: str) -> None:
    """Write `PATH_light.svg` and `PATH_dark.svg`, with a transparent background and the scheme's text color."""
    figure.patch.set_alpha(0)
    for name, (text, frames) in SCHEMES.items():
        for axes in figure.axes:
            axes.patch.set_alpha(0)
            axes.tick_params(which="both", colors=text)
            legend = axes.get_legend()
            for part in (axes.title, axes.xaxis.label, axes.yaxis.label, *(legend.get_texts() if legend else ())):
                part.set_color(text)
            if legend:
                legend.get_frame().set_alpha(0)
            for spine in axes.spines.values():
                spine.set_color(frames)
            for line in (*axes.get_xgridlines(), *axes.get_ygridlines()):
                line.set(color=frames, linewidth=0.6)
        plots.save(figure, f"{path}_{name}.svg")
