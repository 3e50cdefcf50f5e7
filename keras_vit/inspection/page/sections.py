"""Content of the page: what `render` turns into HTML."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class View:
    """A kind of map that can be laid over the images.

    Attributes:
        key: Key of the maps in `ImageCard.maps`.
        title: Entry in the list of views.
        help: One sentence that explains the map.
        frames: Positions of the slider, such as layer names.
        heads: Number of heads, whose maps follow their mean in each frame. 0 if there is one map per frame.
    """

    key: str
    title: str
    help: str
    frames: tuple[str, ...]
    heads: int = 0


@dataclasses.dataclass(frozen=True)
class ImageCard:
    """An image with its predictions and maps.

    Attributes:
        name: File name, or another short name.
        pixels: uint8 `[H, W, C]`.
        box: (top, left, bottom, right) of the part that the model saw, in pixels.
        predictions: Labels with their probabilities, the most likely first.
        maps: By view, `[frames, 1 + heads, h, w]`. Each map is scaled to its maximum.
        truth: True label, or None if it is unknown.
        correct: Whether the first prediction is right, or None if the true label is unknown.
    """

    name: str
    pixels: np.ndarray
    box: tuple[float, float, float, float]
    predictions: Sequence[tuple[str, float]] = ()
    maps: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    truth: str | None = None
    correct: bool | None = None


@dataclasses.dataclass(frozen=True)
class Classes:
    """Results per class.

    Attributes:
        names: Class names.
        accuracies: Accuracy of each class; NaN for a class without images.
        counts: Number of images of each class.
        confusion: Counts `[true class, predicted class]`, or None for images with several labels.
    """

    names: Sequence[str]
    accuracies: np.ndarray
    counts: np.ndarray
    confusion: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Figure:
    """A card with drawings.

    Attributes:
        title: Heading.
        help: One sentence that explains the drawings.
        drawings: SVG files, side by side.
    """

    title: str
    help: str
    drawings: Sequence[bytes]


@dataclasses.dataclass(frozen=True)
class Page:
    """The page.

    Attributes:
        title: Heading.
        subtitle: Line below it.
        tiles: Headline figures: values with their captions, the most important first.
        notes: Remarks on what the page does not show, and why.
        images: Images to look at.
        views: Kinds of maps over them, the first of which is shown first.
        num_mistakes: Number of mistakes among all evaluated images, or None if it is unknown.
        classes: Results per class, or None if there are none.
        figures: Further cards.
        card: Model card: names to values.
        footer: Last line.
    """

    title: str
    subtitle: str = ""
    tiles: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    images: Sequence[ImageCard] = ()
    views: Sequence[View] = ()
    num_mistakes: int | None = None
    classes: Classes | None = None
    figures: Sequence[Figure] = ()
    card: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    footer: str = ""
