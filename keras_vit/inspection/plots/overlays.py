"""Pictures with what a model looks at laid over them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.inspection.plots import _matplotlib
from keras_vit.inspection.plots._text import fit

OPACITY = 0.6
_TITLE_WIDTH = 17  # letters above an image


def overlay(
    picture: np.ndarray,
    grid: np.ndarray,
    box: Sequence[float] | None = None,
    opacity: float = OPACITY,
    smooth: bool = True,
) -> np.ndarray:
    """Lays a map of patches over a picture, at the picture's own resolution.

    Args:
        picture: uint8 `[H, W]`, `[H, W, 1]` or `[H, W, 3]`.
        grid: `[h, w]`, what each patch counts; negative values count as zero. The largest is drawn brightest.
        box: (top, left, bottom, right) of the part of the picture that the model saw, in pixels; None for all of it.
            The rest is darkened.
        opacity: Of the map, in [0, 1].
        smooth: Whether to interpolate between the patches' centres, or to show the patches as they are.

    Returns:
        uint8 `[H, W, 3]`.
    """
    picture = to_rgb(picture).astype(np.float32)
    height, width = picture.shape[:2]
    top, left, bottom, right = box or (0.0, 0.0, height, width)
    grid = np.maximum(np.asarray(grid, np.float32), 0.0)
    grid = grid / max(grid.max(), 1e-12)
    rows, inside_rows = _weights(height, top, bottom, grid.shape[0], smooth)
    columns, inside_columns = _weights(width, left, right, grid.shape[1], smooth)
    heat = rows @ grid @ columns.T  # [H, W]
    table = np.asarray(_matplotlib.colors(_matplotlib.HEAT), np.float32)  # [256, 3]
    colors = table[np.clip(np.round(heat * 255), 0, 255).astype(int)]
    colors = np.where((inside_rows[:, None] & inside_columns)[..., None], colors, 0.0)
    return np.round(picture * (1 - opacity) + colors * opacity).astype(np.uint8)


def _weights(size: int, start: float, end: float, cells: int, smooth: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns how each pixel of a side mixes the cells, `[size, cells]`, and which pixels lie between start and end."""
    centres = np.arange(size) + 0.5
    place = (centres - start) / max(end - start, 1e-9) * cells  # 0.5 is the centre of the first cell
    if smooth:
        distance = np.abs(np.clip(place, 0.5, cells - 0.5)[:, None] - (np.arange(cells) + 0.5))
        weights = np.maximum(1.0 - distance, 0.0)
    else:
        weights = np.eye(cells)[np.clip(place.astype(int), 0, cells - 1)]
    return weights.astype(np.float32), (centres > start) & (centres < end)


def to_rgb(picture: np.ndarray) -> np.ndarray:
    """Returns a picture, uint8 or float of any range, as uint8 `[H, W, 3]`."""
    picture = np.asarray(picture)
    if picture.ndim == 2:
        picture = picture[..., None]
    if picture.dtype != np.uint8:
        picture = picture.astype(np.float32)
        low, high = (0.0, 255.0) if picture.max() > 1.5 else (picture.min(), picture.max())
        picture = np.round(np.clip((picture - low) / max(high - low, 1e-6), 0.0, 1.0) * 255).astype(np.uint8)
    return np.repeat(picture, 3, axis=-1) if picture.shape[-1] == 1 else picture[..., :3]


def encode_picture(picture: np.ndarray) -> bytes:
    """Returns a picture as a file: JPEG where it is large, PNG where each pixel counts."""
    kind = "jpeg" if max(np.shape(picture)[:2]) >= 256 else "png"
    return _matplotlib.encode(to_rgb(picture), kind)


def heat_colors() -> list[list[int]]:
    """Returns the 256 colours of overlays as [red, green, blue] in 0..255."""
    return _matplotlib.colors(_matplotlib.HEAT)


def show_picture(axes: Any, picture: np.ndarray) -> None:
    """Draws a picture; grey ones dark on light, as ink on paper."""
    picture = np.asarray(picture)
    if picture.ndim == 3 and picture.shape[-1] == 1:
        axes.imshow(to_rgb(picture)[..., 0], cmap="gray_r", vmin=0, vmax=255)
    else:
        axes.imshow(to_rgb(picture))


@_matplotlib.in_style
def attention_overlays(
    pictures: Sequence[np.ndarray],
    rows: Mapping[str, Sequence[np.ndarray]],
    titles: Sequence[str] | None = None,
    boxes: Sequence[Sequence[float] | None] | None = None,
) -> Any:
    """Draws pictures in columns, and below each what a model looks at, one row for each way of telling.

    Args:
        pictures: See `overlay`, one a column.
        rows: Name, such as `"Attention rollout"`, to a grid `[h, w]` for each picture.
        titles: Of the columns.
        boxes: See `overlay`, one a column.
    """
    count = len(pictures)
    boxes = boxes or [None] * count
    width = min(1.55 * count + 0.6, 14)
    title_width = min(_TITLE_WIDTH, int(10.5 * width / count))
    figure = _matplotlib.new_figure(width, 1.65 * (len(rows) + 1) + 0.3)
    panels = figure.subplots(len(rows) + 1, count, squeeze=False)
    for column, picture in enumerate(pictures):
        panels[0, column].imshow(to_rgb(picture), interpolation=_interpolation(picture))
        panels[0, column].set_title(fit(titles[column], title_width) if titles else "", fontsize=8)
        for row, grids in enumerate(rows.values(), start=1):
            image = overlay(_enlarged(picture), grids[column], _scaled(boxes[column], picture))
            panels[row, column].imshow(image)
    for row, name in enumerate(("picture", *rows)):
        panels[row, 0].set_ylabel(name)
    for axes in panels.flat:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    return figure


@_matplotlib.in_style
def attention_panels(
    picture: np.ndarray, grids: Mapping[str, np.ndarray], box: Sequence[float] | None = None, title: str = ""
) -> Any:
    """Draws one picture with a map for each layer or head.

    Args:
        picture: See `overlay`.
        grids: Name of the panel to a grid `[h, w]`.
        box: See `overlay`.
        title: Of the figure.
    """
    columns = min(6, len(grids) + 1)
    rows = -(-(len(grids) + 1) // columns)
    figure = _matplotlib.new_figure(1.6 * columns, 1.75 * rows + 0.3)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for axes in panels:
        axes.set_axis_off()
    panels = list(figure.axes)
    panels[0].imshow(to_rgb(picture), interpolation=_interpolation(picture))
    panels[0].set_title("picture", fontsize=8)
    for axes, (name, grid) in zip(panels[1:], grids.items(), strict=False):
        axes.imshow(overlay(_enlarged(picture), grid, _scaled(box, picture)))
        axes.set_title(fit(name, _TITLE_WIDTH), fontsize=8)
    figure.suptitle(fit(title, 16 * columns))
    return figure


def _interpolation(picture: np.ndarray) -> str:
    return "nearest" if max(np.shape(picture)[:2]) < 64 else "auto"


def _factor(picture: np.ndarray) -> int:
    """Returns by how much a tiny picture is enlarged, so that a smooth map over it is smooth."""
    return max(64 // max(np.shape(picture)[:2]), 1)


def _enlarged(picture: np.ndarray) -> np.ndarray:
    factor = _factor(picture)
    return to_rgb(picture).repeat(factor, axis=0).repeat(factor, axis=1)


def _scaled(box: Sequence[float] | None, picture: np.ndarray) -> list[float] | None:
    return None if box is None else [edge * _factor(picture) for edge in box]
