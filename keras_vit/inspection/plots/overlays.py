"""Overlays of maps on images."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.inspection.plots import _matplotlib
from keras_vit.inspection.plots._text import fit

OPACITY = 0.6
_TITLE_WIDTH = 17  # letters above an image
_SMALL = 64  # pixels per side below which an image shows its pixels


def overlay(
    image: np.ndarray,
    grid: np.ndarray,
    box: Sequence[float] | None = None,
    opacity: float = OPACITY,
    smooth: bool = True,
) -> np.ndarray:
    """Lay a map of patches over an image, at the resolution of the image.

    Args:
        image: uint8 `[H, W]`, `[H, W, 1]` or `[H, W, 3]`.
        grid: `[h, w]`, weight of each patch. Negative values count as zero, and the largest is the brightest.
        box: (top, left, bottom, right) of the part of the image that the model saw, in pixels; None for all of it. The
            rest is darkened.
        opacity: Opacity of the map, in [0, 1].
        smooth: Whether to interpolate between the centers of the patches.

    Returns:
        uint8 `[H, W, 3]`.

    Example:
    >>> relevance = keras_vit.inspection.gradient_attention(model, images)
    >>> overlay(to_rgb(images[0]), relevance[0]).shape
    (32, 32, 3)
    """
    image = to_rgb(image).astype(np.float32)
    height, width = image.shape[:2]
    top, left, bottom, right = box or (0.0, 0.0, height, width)
    grid = np.maximum(np.asarray(grid, np.float32), 0.0)
    grid = grid / max(grid.max(), 1e-12)
    rows, inside_rows = _weights(height, top, bottom, grid.shape[0], smooth)
    columns, inside_columns = _weights(width, left, right, grid.shape[1], smooth)
    heat = rows @ grid @ columns.T  # [H, W]
    table = np.asarray(_matplotlib.colors(_matplotlib.HEAT), np.float32)  # [256, 3]
    colors = table[np.clip(np.round(heat * 255), 0, 255).astype(int)]
    colors = np.where((inside_rows[:, None] & inside_columns)[..., None], colors, 0.0)
    return np.round(image * (1 - opacity) + colors * opacity).astype(np.uint8)


def _weights(size: int, start: float, end: float, cells: int, smooth: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return how each pixel of a side mixes the cells, `[size, cells]`, and whether it is between start and end."""
    centers = np.arange(size) + 0.5
    place = (centers - start) / max(end - start, 1e-9) * cells  # 0.5 is the center of the first cell
    if smooth:
        distance = np.abs(np.clip(place, 0.5, cells - 0.5)[:, None] - (np.arange(cells) + 0.5))
        weights = np.maximum(1.0 - distance, 0.0)
    else:
        weights = np.eye(cells)[np.clip(place.astype(int), 0, cells - 1)]
    return weights.astype(np.float32), (centers > start) & (centers < end)


def to_rgb(image: np.ndarray) -> np.ndarray:
    """Return an image, uint8 or float of any range, as uint8 `[H, W, 3]`.

    Example:
    >>> image = to_rgb(images[0])  # float in [-1, 1]
    >>> image.shape, image.dtype.name
    ((32, 32, 3), 'uint8')
    """
    image = np.asarray(image)
    if image.ndim == 2:
        image = image[..., None]
    if image.dtype != np.uint8:
        image = image.astype(np.float32)
        low, high = (0.0, 255.0) if image.max() > 1.5 else (image.min(), image.max())
        image = np.round(np.clip((image - low) / max(high - low, 1e-6), 0.0, 1.0) * 255).astype(np.uint8)
    return np.repeat(image, 3, axis=-1) if image.shape[-1] == 1 else image[..., :3]


def encode_image(image: np.ndarray) -> bytes:
    """Return an image as a file: JPEG if it is large, PNG otherwise.

    Example:
    >>> encode_image(to_rgb(images[0]))[1:4]
    b'PNG'
    """
    kind = "jpeg" if max(np.shape(image)[:2]) >= 256 else "png"
    return _matplotlib.encode(to_rgb(image), kind)


def heat_colors() -> list[list[int]]:
    """Return the 256 colors of overlays as [red, green, blue] in 0..255.

    Example:
    >>> colors = heat_colors()
    >>> len(colors), len(colors[0])
    (256, 3)
    """
    return _matplotlib.colors(_matplotlib.HEAT)


def show_image(axes: Any, image: np.ndarray) -> None:
    """Draw an image; gray ones dark on light, like ink on paper."""
    image = np.asarray(image)
    if image.ndim == 3 and image.shape[-1] == 1:
        axes.imshow(to_rgb(image)[..., 0], cmap="gray_r", vmin=0, vmax=255)
    else:
        axes.imshow(to_rgb(image))


@_matplotlib.in_style
def attention_overlays(
    images: Sequence[np.ndarray],
    rows: Mapping[str, Sequence[np.ndarray]],
    titles: Sequence[str] | None = None,
    boxes: Sequence[Sequence[float] | None] | None = None,
) -> Any:
    """Draw images in columns, with one row of overlays per kind of map.

    Args:
        images: Images, see `overlay`, one per column.
        rows: Name, such as `"Attention rollout"`, to a grid `[h, w]` per image.
        titles: Title of each column.
        boxes: See `overlay`, one per column.

    Example:
    >>> maps = keras_vit.inspection.attention_maps(model, images)
    >>> rollout = maps.output_grid(keras_vit.inspection.attention_rollout(maps))
    >>> figure = attention_overlays([to_rgb(image) for image in images], {"Attention rollout": rollout})
    """
    count = len(images)
    boxes = boxes or [None] * count
    width = min(1.55 * count + 0.6, 14)
    title_width = min(_TITLE_WIDTH, int(10.5 * width / count))
    figure = _matplotlib.new_figure(width, 1.65 * (len(rows) + 1) + 0.3)
    panels = figure.subplots(len(rows) + 1, count, squeeze=False)
    for column, image in enumerate(images):
        _draw(panels[0, column], image)
        panels[0, column].set_title(fit(titles[column], title_width) if titles else "", fontsize=8)
        for row, grids in enumerate(rows.values(), start=1):
            _draw(panels[row, column], image, grids[column], boxes[column])
    for row, name in enumerate(("image", *rows)):
        panels[row, 0].set_ylabel(name)
    for axes in panels.flat:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    return figure


@_matplotlib.in_style
def attention_panels(
    image: np.ndarray, grids: Mapping[str, np.ndarray], box: Sequence[float] | None = None, title: str = ""
) -> Any:
    """Draw one image with a map per layer or head.

    Args:
        image: Image, see `overlay`.
        grids: Name of the panel to a grid `[h, w]`.
        box: See `overlay`.
        title: Title of the figure.

    Example:
    >>> grids = keras_vit.inspection.attention_maps(model, images).grids()
    >>> heads = {f"head {number}": grid for number, grid in enumerate(grids["encoderblock_1"][0])}
    >>> figure = attention_panels(to_rgb(images[0]), heads)
    """
    columns = min(6, len(grids) + 1)
    rows = -(-(len(grids) + 1) // columns)
    figure = _matplotlib.new_figure(1.6 * columns, 1.75 * rows + 0.3)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels:
        axes.set_axis_off()
    _draw(panels[0], image)
    panels[0].set_title("image", fontsize=8)
    for axes, (name, grid) in zip(panels[1:], grids.items(), strict=False):
        _draw(axes, image, grid, box)
        axes.set_title(fit(name, _TITLE_WIDTH), fontsize=8)
    figure.suptitle(fit(title, 16 * columns))
    return figure


def _draw(axes: Any, image: np.ndarray, grid: np.ndarray | None = None, box: Sequence[float] | None = None) -> None:
    """Draw an image, or a map over it."""
    image = to_rgb(image)
    side = max(image.shape[:2])
    if grid is None:
        axes.imshow(image, interpolation="nearest" if side < _SMALL else "auto")
        return
    factor = max(_SMALL // side, 1)  # a small image is enlarged, so that a smooth map over it looks smooth
    large = image.repeat(factor, axis=0).repeat(factor, axis=1)
    axes.imshow(overlay(large, grid, None if box is None else [edge * factor for edge in box]))
