"""Draw images with a trained model's patch features as colors and the attention of its heads."""

import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit import inspection
from keras_vit.data import preprocess
from keras_vit.inspection import plots
from keras_vit.inspection.plots import _matplotlib

FIGURE = "docs/figures/real_network.webp"
IMAGES = ("chelsea.png", "astronaut.png", "coffee.png", "rocket.jpg")
SIDE = 448  # pixels of the shorter side
PATCH = 14
HEADS = (0, 3, 5)  # the heads that differ most, of six
GRAY = "#7d8590"  # readable on light and dark pages


def draw(model: keras.Model, folder: str) -> None:
    """Draw the figure of the page. The model must return all tokens and accept images of any size."""
    rows = []
    for name in IMAGES:
        with open(os.path.join(folder, name), "rb") as file:
            photo, image = prepared(file.read())
        *_, heads = inspection.attention_maps(model, image[None]).grids().values()  # [1, H, h, w], of the class token
        rows.append((photo, colors(model.predict(image[None], verbose=0)[0], heads.shape[2:]), heads[0]))
    plots.save(figure(rows), FIGURE)


def prepared(contents: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return an image as uint8 pixels and as the model's input. Its sides are multiples of the patch size."""
    encoded = tf.constant(contents)
    pixels = np.asarray(preprocess.single_image("decode(3)")(encoded))
    scale = SIDE / min(pixels.shape[:2])
    height, width = (round(side * scale / PATCH) * PATCH for side in pixels.shape[:2])
    resize = f"decode(3)|resize(({height}, {width}))"
    return (
        np.asarray(preprocess.single_image(resize)(encoded)).astype(np.uint8),
        np.asarray(preprocess.single_image(f"{resize}|value_norm")(encoded)),
    )


def colors(tokens: np.ndarray, grid: tuple[int, ...]) -> np.ndarray:
    """Return the three principal components of the patch features as RGB colors, `[h, w, 3]` in [0, 1]."""
    patches = tokens[-grid[0] * grid[1] :].astype(np.float64)
    patches = patches - patches.mean(axis=0)
    components = np.linalg.svd(patches, full_matrices=False)[2][:3]  # [3, D]
    largest = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)
    values = patches @ (components * np.sign(largest)).T  # [N, 3]
    low, high = np.percentile(values, (2, 98), axis=0)
    return np.clip((values - low) / (high - low), 0, 1).reshape(*grid, 3)


@_matplotlib.in_style
def figure(rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Any:
    """Return the figure, with a row per image: the image, its colors, and the attention of the heads."""
    titles = ["image", "features of the patches", *(f"attention of head {head + 1}" for head in HEADS)]
    heights = [photo.shape[0] / photo.shape[1] for photo, _, _ in rows]
    drawn = _matplotlib.new_figure(11, 11 / len(titles) * sum(heights) + 0.4)
    drawn.patch.set_alpha(0)
    panels = drawn.subplots(len(rows), len(titles), squeeze=False, gridspec_kw={"height_ratios": heights})
    for line, (photo, components, heads) in zip(panels, rows, strict=True):
        extent = (0, photo.shape[1], photo.shape[0], 0)
        line[0].imshow(photo, extent=extent)
        line[1].imshow(components, extent=extent, interpolation="bilinear")
        for axes, head in zip(line[2:], HEADS, strict=True):
            axes.imshow(plots.overlay(photo, heads[head]), extent=extent)
    for axes, title in zip(panels[0], titles, strict=True):
        axes.set_title(title, fontsize=9, color=GRAY)
    for axes in panels.flat:
        axes.set_axis_off()
    return drawn
