"""Figure of predicted against true values."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.evaluators import regression
from keras_vit.inspection.plots import _matplotlib

_COLUMNS = 3
_MANY = 5_000  # with more dots, vector graphics embed the dots as pixels


@_matplotlib.in_style
def predicted_against_true(true: np.ndarray, predicted: np.ndarray, names: Sequence[str]) -> Any:
    """Draw predicted values against true values, with one panel per kind of value.

    Exact predictions lie on the diagonal.

    Args:
        true: True values, `[N, k]`.
        predicted: Predicted values, `[N, k]`. Pairs with a value that is not finite are ignored.
        names: Names of the values.

    Example:
    >>> true = np.random.default_rng(0).normal(40, 10, (50, 1))
    >>> figure = predicted_against_true(true, true + 1, ["age"])
    """
    errors = regression.errors(true, predicted)
    rows, columns = -(-len(names) // _COLUMNS), min(len(names), _COLUMNS)
    figure = _matplotlib.new_figure(3.6 * columns, 3.8 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    for column, (axes, name) in enumerate(zip(panels, names, strict=False)):
        pairs = np.stack([np.asarray(true)[:, column], np.asarray(predicted)[:, column]]).astype(np.float64)  # [2, N]
        x, y = pairs[:, np.isfinite(pairs).all(axis=0)]
        ends = [min(x.min(), y.min()), max(x.max(), y.max())] if len(x) else [0.0, 1.0]
        axes.plot(ends, ends, color=_matplotlib.VERMILION, linewidth=1)
        axes.scatter(x, y, s=10, color=_matplotlib.BLUE, alpha=0.5, linewidths=0, rasterized=len(x) > _MANY)
        title = f"{_matplotlib.fit(name, 30)}: MAE {errors['mae'][column]:.4g}, R2 {errors['r2'][column]:.4g}"
        axes.set(xlabel="true", ylabel="predicted", title=title, box_aspect=1)
    return figure
