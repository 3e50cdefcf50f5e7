"""Everything there is to see of a model, as files and one page."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from absl import logging

from keras_vit.inspection import _layer_walk, page, plots
from keras_vit.inspection.distance import attention_distance
from keras_vit.inspection.embeddings import embedding_filters, position_similarity
from keras_vit.inspection.occlusion import occlusion_sensitivity
from keras_vit.inspection.relevance import gradient_attention
from keras_vit.inspection.streaming_attention import AttentionSummary, stream_attention

PAGE, FIGURES = "report.html", "figures"
_TOP = 5
_STATIC = 8  # pictures in the figure for print
_OCCLUSION_GRID = 8


class Example(NamedTuple):
    """A picture, as people and as the model see it.

    Attributes:
        name: Of the picture.
        pixels: uint8 `[H, W, C]`, at its own resolution.
        image: float32 `[h, w, c]`, what the model takes.
        box: (top, left, bottom, right): the part of `pixels` that `image` shows, in pixels.
        truth: The true label, or None where it is not known.
        attention: `[layers, h, w]` where an exported model gives it, or None.
    """

    name: str
    pixels: np.ndarray
    image: np.ndarray
    box: tuple[float, float, float, float]
    truth: str | None = None
    attention: np.ndarray | None = None


def write_report(
    directory: str,
    title: str,
    examples: Sequence[Example],
    predict: Callable[[np.ndarray], np.ndarray] | None,
    class_names: Sequence[str],
    model: keras.Model | None = None,
    card: Mapping[str, Any] | None = None,
    metrics: Sequence[dict] = (),
    distance_images: Any = None,
    progress: bool = False,
) -> str:
    """Writes `report.html` and the figures beside it.

    Args:
        directory: Where; made if it is not there.
        title: Of the page.
        examples: Pictures to look at.
        predict: Images `[B, h, w, c]` to probabilities `[B, classes]`; None for a model without classes.
        class_names: One label for each class.
        model: The Keras model, or None for an exported one, of which predictions are all that there is.
        card: What is told of the model: names to values.
        metrics: Lines of `metrics.jsonl`.
        distance_images: Images for the attention distance, an array or an iterable; None for those of the examples.
        progress: Whether to show progress bars.

    Returns:
        The path of the page.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    plots.require_matplotlib()
    os.makedirs(os.path.join(directory, FIGURES), exist_ok=True)
    book = _Figures(os.path.join(directory, FIGURES))
    has_attention = model is not None and _layer_walk.has_attention(model)
    notes = []
    if model is None:
        notes.append(
            "This is an exported model: its layers cannot be looked into. Occlusion, which needs predictions only, "
            "shows what it looks at. Give the run or checkpoint that it was exported from for the other figures."
        )
    elif not has_attention:
        notes.append("This model has no attention. Occlusion, which needs predictions only, shows what it looks at.")
    elif predict is None:
        notes.append("This model has no head, and so predicts no classes.")

    pictures, views = _pictures(examples, predict, class_names, model if has_attention else None)
    if views:
        _draw_pictures(book, examples, pictures, views)
    if model is not None:
        _draw_model(book, model)
    if has_attention and (examples or distance_images is not None):
        if distance_images is None:
            distance_images = [example.image for example in examples]
        count = len(distance_images) if hasattr(distance_images, "__len__") else None
        values = attention_distance(model, distance_images, progress=progress)
        book.add(
            "attention_distance",
            "How far attention reaches",
            "Each dot is a head: the mean distance in pixels between a patch and the patches that it attends to, "
            "weighted with attention. Some heads of low layers usually stay near, those of high layers see the whole "
            "picture.",
            plots.attention_distance(values, num_images=count),
        )
    if metrics:
        book.add(
            "training",
            "Training",
            "Loss, accuracy and learning rate by step.",
            plots.training_curves(metrics, ""),
            True,
        )

    facts = _facts(model, class_names)
    path = os.path.join(directory, PAGE)
    page.write(path, page.render(title, facts, notes, pictures, views, book.figures, card))
    return path


class _Figures:
    """Collects the figures of the page, and writes each as SVG and PNG."""

    def __init__(self, directory: str):
        self.directory = directory
        self.figures: list[page.Figure] = []

    def add(self, name: str, title: str, caption: str, figure: Any, wide: bool = False) -> None:
        """Writes a figure, and puts it on the page."""
        self.figures.append(page.Figure(title, caption, self.save(name, figure), wide))

    def save(self, name: str, figure: Any) -> bytes:
        """Writes a figure that need not be on the page, and returns its SVG."""
        drawing = plots.svg(figure)
        page.write(os.path.join(self.directory, f"{name}.svg"), drawing.decode("utf-8"))
        plots.save(figure, os.path.join(self.directory, f"{name}.png"))
        return drawing


def _pictures(
    examples: Sequence[Example],
    predict: Callable[[np.ndarray], np.ndarray] | None,
    class_names: Sequence[str],
    model: keras.Model | None,
) -> tuple[list[page.Picture], list[page.View]]:
    """Returns the pictures with their predictions and maps, and what the maps are."""
    pictures, views = [], []
    for example in examples:
        predictions, best = [], None
        if predict is not None:
            shares = np.asarray(predict(example.image[None]))[0]
            order = np.argsort(-shares, kind="stable")[:_TOP].tolist()
            predictions, best = [(str(class_names[index]), float(shares[index])) for index in order], order[0]
        maps: dict[str, np.ndarray] = {}
        if model is not None:
            maps, views = _maps_of_model(model, example, best)
        elif predict is not None:
            maps, views = _maps_of_predictions(predict, example, best)
        pictures.append(page.Picture(example.name, example.pixels, example.box, predictions, maps, example.truth))
    return pictures, views


def _maps_of_model(
    model: keras.Model, example: Example, class_index: int | None
) -> tuple[dict[str, np.ndarray], list[page.View]]:
    seen: AttentionSummary = stream_attention(model, example.image)
    heads = seen.layers.shape[1]
    names = tuple(f"{number}: {name}" for number, name in enumerate(seen.names, start=1))
    maps = {
        "layers": np.concatenate([seen.layers.mean(axis=1, keepdims=True), seen.layers], axis=1),
        "rollout": seen.rollout[:, None],
    }
    views = [
        page.View("layers", "Attention by layer", names, heads),
        page.View("rollout", "Attention rollout", tuple(f"1 to {name}" for name in names)),
    ]
    if class_index is None:
        return maps, views
    try:
        maps["relevance"] = gradient_attention(model, example.image[None], class_index)[:, None]
        views.append(page.View("relevance", "Relevance for the likeliest class", ("all layers",)))
    except NotImplementedError as error:  # a backend without gradients of functions
        logging.info("No class-specific relevance: %s", error)
    return maps, views


def _maps_of_predictions(
    predict: Callable[[np.ndarray], np.ndarray], example: Example, class_index: int
) -> tuple[dict[str, np.ndarray], list[page.View]]:
    fall = occlusion_sensitivity(predict, example.image, class_index, grid=_OCCLUSION_GRID)
    maps = {"occlusion": fall[None, None]}
    views = [page.View("occlusion", "Occlusion: what the likeliest class needs", ("whole model",))]
    if example.attention is not None:
        maps["layers"] = example.attention[:, None]
        names = tuple(f"block {number}" for number in range(1, len(example.attention) + 1))
        views.insert(0, page.View("layers", "Attention by layer", names))
    return maps, views


def _draw_pictures(
    book: _Figures, examples: Sequence[Example], pictures: Sequence[page.Picture], views: Sequence[page.View]
) -> None:
    """Draws what the page's slider shows as figures for print: the last frame of all pictures, all layers of each."""
    shown = list(pictures[:_STATIC])
    names = {"layers": "last layer", "rollout": "rollout", "relevance": "relevance", "occlusion": "occlusion"}
    rows = {names[view.key]: [picture.maps[view.key][-1, 0] for picture in shown] for view in views}
    titles = [plots.prediction(*p.predictions[0], width=17) if p.predictions else p.name for p in shown]
    figure = plots.attention_overlays([p.pixels for p in shown], rows, titles, [p.box for p in shown])
    book.add(
        "overlays",
        "Where it looks, side by side",
        "The last layer's attention, attention followed through all layers, and what speaks for the likeliest class, "
        "as far as the model allows.",
        figure,
        wide=True,
    )
    layered = next((view for view in views if view.key == "layers"), None)
    for number, picture in enumerate(shown if layered else ()):
        grids = {name: grid[0] for name, grid in zip(layered.frames, picture.maps["layers"], strict=True)}
        book.save(f"layers_{number}", plots.attention_panels(picture.pixels, grids, picture.box, picture.name))


def _draw_model(book: _Figures, model: keras.Model) -> None:
    """Draws the filters and positions, where there are any."""
    try:
        book.add(
            "embedding_filters",
            "Filters of the first layer",
            "The strongest principal components of the filters that read the pixels; grey is zero. Trained on many "
            "pictures they look like a basis for the fine structure of a patch.",
            plots.embedding_filters(embedding_filters(model), title=""),
        )
    except ValueError as error:
        logging.info("No embedding filters: %s", error)
    try:
        book.add(
            "position_similarity",
            "Similarity of positions",
            "Each panel stands at the place of a patch and shows how similar its position embedding is to those of all "
            "patches. Rows and columns appear where the model learned the plane.",
            plots.position_similarity(position_similarity(model), title=""),
        )
    except ValueError as error:
        logging.info("No position similarity: %s", error)


def _facts(model: keras.Model | None, class_names: Sequence[str]) -> list[str]:
    facts = []
    if model is not None:
        shape = model.input_shape
        size = " x ".join("any" if side is None else str(side) for side in shape[1:3])
        facts += [type(model).__name__, f"{model.count_params():,} parameters", f"images of {size} pixels"]
    return [*facts, f"{len(class_names):,} classes"] if class_names else facts
