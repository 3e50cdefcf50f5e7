"""Images overlaid with maps."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.inspection.plots import _matplotlib
from keras_vit.inspection.plots._matplotlib import fit

OPACITY = 0.6
_TITLE_WIDTH = 17  # letters in the title of an image
_SMALL = 64  # images with fewer pixels per side are drawn without smoothing


def overlay(image: np.ndarray, grid: np.ndarray, opacity: float = OPACITY) -> np.ndarray:
    """Overlay an image with a map of patches, at the resolution of the image.

    Args:
        image: uint8 `[H, W]`, `[H, W, 1]` or `[H, W, 3]`, resized and cropped as for the model.
        grid: Weight of each patch, `[h, w]`. The largest weight is the brightest; negative weights count as zero.
        opacity: Opacity of the map, in [0, 1].

    Returns:
        uint8 `[H, W, 3]`.

    Example:
    >>> relevance = keras_vit.inspection.gradient_attention(model, images)
    >>> overlay(to_rgb(images[0]), relevance[0]).shape
    (32, 32, 3)
    """
    image = to_rgb(image).astype(np.float32)
    grid = np.maximum(np.asarray(grid, np.float32), 0.0)
    grid = grid / max(grid.max(), 1e-12)
    rows, columns = (_weights(*sizes) for sizes in zip(image.shape[:2], grid.shape, strict=True))
    heat = rows @ grid @ columns.T  # [H, W]
    table = np.asarray(_matplotlib.heat_colors(), np.float32)  # [256, 3]
    colors = table[np.clip(np.round(heat * 255), 0, 255).astype(int)]
    return np.round(image * (1 - opacity) + colors * opacity).astype(np.uint8)


def _weights(size: int, cells: int) -> np.ndarray:
    """Return the weights of linear interpolation from cells to pixels, `[size, cells]`."""
    position = np.clip((np.arange(size) + 0.5) / size * cells, 0.5, cells - 0.5)  # 0.5 is the center of the first cell
    return np.maximum(1.0 - np.abs(position[:, None] - (np.arange(cells) + 0.5)), 0.0).astype(np.float32)


def to_rgb(image: np.ndarray) -> np.ndarray:
    """Convert an image, uint8 or float of any range, to uint8 `[H, W, 3]`.

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
    """Encode an image: as JPEG if a side has at least 256 pixels, as PNG otherwise."""
    kind = "jpeg" if max(np.shape(image)[:2]) >= 256 else "png"
    return _matplotlib.encode(to_rgb(image), kind)


def show_image(axes: Any, image: np.ndarray) -> None:
    """Draw an image. Grayscale images are inverted: high values are dark, like ink on paper."""
    image = np.asarray(image)
    if image.ndim == 3 and image.shape[-1] == 1:
        axes.imshow(to_rgb(image)[..., 0], cmap="gray_r", vmin=0, vmax=255)
    else:
        axes.imshow(to_rgb(image))


@_matplotlib.in_style
def attention_overlays(
    images: Sequence[np.ndarray], rows: Mapping[str, Sequence[np.ndarray]], titles: Sequence[str] = ()
) -> Any:
    """Draw one column per image, with a row of overlays for each kind of map.

    Args:
        images: Images as for `overlay`, one per column.
        rows: Maps the name of a row, such as `"Attention rollout"` or the name of a layer, to a list with a grid
            `[h, w]` per image.
        titles: Title of each column.

    Example:
    >>> maps = keras_vit.inspection.attention_maps(model, images)
    >>> rollout = maps.output_grid(keras_vit.inspection.attention_rollout(maps))
    >>> figure = attention_overlays([to_rgb(image) for image in images], {"Attention rollout": rollout})
    """
    count = len(images)
    width = min(1.55 * count + 0.6, 14)
    title_width = min(_TITLE_WIDTH, int(10.5 * width / count))
    figure = _matplotlib.new_figure(width, 1.65 * (len(rows) + 1) + 0.3)
    panels = figure.subplots(len(rows) + 1, count, squeeze=False)
    for axes in panels.flat:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    for column, image in enumerate(map(to_rgb, images)):
        side = max(image.shape[:2])
        panels[0, column].imshow(image, interpolation="nearest" if side < _SMALL else "auto")
        panels[0, column].set_title(fit(titles[column], title_width) if titles else "", fontsize=8)
        factor = max(_SMALL // side, 1)  # enlarge a small image, so that a map over it looks smooth
        large = image.repeat(factor, axis=0).repeat(factor, axis=1)
        for row, grids in enumerate(rows.values(), start=1):
            panels[row, column].imshow(overlay(large, grids[column]))
    for row, name in enumerate(("image", *rows)):
        panels[row, 0].set_ylabel(fit(name, _TITLE_WIDTH))
    return figure
