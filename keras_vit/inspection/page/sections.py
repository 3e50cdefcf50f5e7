"""Content of the page: what `render` turns into HTML."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class View:
    """A kind of map over the images; `key` is that of its maps in `ImageCard.maps`."""

    key: str
    title: str
    help: str
    frames: tuple[str, ...]  # positions of the slider, such as layer names
    heads: int = 0  # number of maps per frame after the mean of the heads


@dataclasses.dataclass(frozen=True)
class ImageCard:
    """An image with its predictions, the most likely first, and its maps, each scaled to its maximum."""

    name: str
    pixels: np.ndarray  # uint8 [H, W, C]
    box: tuple[float, float, float, float]  # top, left, bottom, right of the part that the model saw, in pixels
    predictions: Sequence[tuple[str, float]] = ()
    maps: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # [frames, 1 + heads, h, w] by view
    truth: str | None = None  # None if it is unknown, and so is `correct`
    correct: bool | None = None


@dataclasses.dataclass(frozen=True)
class Classes:
    """Results per class."""

    names: Sequence[str]
    accuracies: np.ndarray  # NaN for a class without images
    counts: np.ndarray
    confusion: np.ndarray | None = None  # [true class, predicted class], None for images with several labels


@dataclasses.dataclass(frozen=True)
class Figure:
    """A card with SVG drawings side by side."""

    title: str
    help: str
    drawings: Sequence[bytes]


@dataclasses.dataclass(frozen=True)
class Page:
    """The page."""

    title: str
    subtitle: str = ""
    tiles: Sequence[tuple[str, str]] = ()  # headline figures: values with their captions
    notes: Sequence[str] = ()  # on what the page does not show, and why
    images: Sequence[ImageCard] = ()
    views: Sequence[View] = ()  # the first is shown first
    num_mistakes: int | None = None  # among all evaluated images
    classes: Classes | None = None
    figures: Sequence[Figure] = ()
    card: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    footer: str = ""
