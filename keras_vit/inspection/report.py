"""The report of a model: one page and its figures."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from keras_vit import _io, _numbers
from keras_vit.inspection import _layer_walk, page, plots
from keras_vit.inspection.distance import attention_distance
from keras_vit.inspection.embeddings import embedding_filters, position_similarity
from keras_vit.inspection.examples import Example
from keras_vit.inspection.headings import stamp
from keras_vit.inspection.report_cards import image_cards

PAGE, FIGURES = "report.html", "figures"
_PRINTED = 8  # images in the figure of overlays


def write_report(
    directory: str,
    title: str,
    examples: Sequence[Example],
    predict: Callable[[np.ndarray], np.ndarray] | None,
    class_names: Sequence[str],
    *,
    model: keras.Model | None = None,
    results: Mapping[str, Any] | None = None,
    data: str = "",
    card: Mapping[str, Any] | None = None,
    metrics: Sequence[dict] = (),
    distance_images: Any = None,
    reconstructions: Mapping[str, np.ndarray] | None = None,
    progress: bool = False,
) -> str:
    """Write `report.html` and the figures next to it, and return the path of the page.

    Args:
        directory: Directory to write to. It is created if it does not exist.
        title: Heading of the page.
        examples: Images to look at.
        predict: Function from images `[B, h, w, c]` to probabilities `[B, classes]`; None for a model without classes.
        class_names: Name of each class.
        model: The Keras model, or None for an exported model, which only predicts.
        results: Result of `evaluators.ClassificationMetrics.result`.
        data: Name of the data of `results`, such as `"test split of digits"`.
        card: Facts about the model: names to values.
        metrics: Lines of `metrics.jsonl`.
        distance_images: Images for the attention distance, an array or an iterable; None for those of the examples.
        reconstructions: See `plots.reconstructions`.
        progress: Whether to show progress bars.
    """
    plots.require_matplotlib()
    os.makedirs(os.path.join(directory, FIGURES), exist_ok=True)
    with_attention = model is not None and _layer_walk.has_attention(model)
    cards, views = image_cards(examples, predict, class_names, model if with_attention else None)
    figures = _Figures(os.path.join(directory, FIGURES))
    if views:
        _draw_overlays(figures, cards, views)
    if reconstructions is not None:
        figures.add(
            "Reconstruction of hidden patches",
            "Input, what the model saw of it, and the patches it predicted for the hidden ones.",
            {"reconstructions": plots.reconstructions(reconstructions)},
        )
    if metrics:
        _draw_training(figures, metrics)
    if model is not None:
        _draw_weights(figures, model)
    if with_attention and (examples or distance_images is not None):
        if distance_images is None:
            distance_images = [example.image for example in examples]
        _draw_distance(figures, model, distance_images, progress)
    content = page.Page(
        title,
        _subtitle(model),
        _tiles(results, data, model, class_names),
        _notes(model, with_attention, predict),
        cards,
        views,
        round(results["examples"] * (1 - results["accuracy"])) if results else None,
        _classes(results, class_names),
        figures.cards,
        card or {},
        f"Written by {stamp()}. This file needs no network and holds the images it shows.",
    )
    path = os.path.join(directory, PAGE)
    _io.write_text(path, page.render(content))
    return path


def _subtitle(model: keras.Model | None) -> str:
    kind = "Exported model" if model is None else type(model).__name__
    return f"{kind} · {stamp()}"


def _tiles(
    results: Mapping[str, Any] | None, data: str, model: keras.Model | None, class_names: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the headline figures."""
    tiles = []
    if results:
        tiles.append((_numbers.metric("accuracy", results["accuracy"]), f"accuracy, {data}" if data else "accuracy"))
        tiles.append((f"{results['examples']:,}", "images evaluated"))
    if class_names:
        tiles.append((f"{len(class_names):,}", "classes"))
    if model is not None:
        height, width = ("any" if side is None else str(side) for side in model.input_shape[1:3])
        tiles.append((f"{model.count_params():,}", "parameters"))
        tiles.append((f"{height} × {width}", "pixels per image"))
    return tiles


def _notes(model: keras.Model | None, with_attention: bool, predict: Callable | None) -> list[str]:
    if model is None:
        return [
            "This is an exported model, whose layers cannot be inspected. Occlusion needs only predictions. Give the "
            "run or checkpoint that the model was exported from to see the other figures."
        ]
    if not with_attention:
        return ["This model has no attention. Occlusion, which needs only predictions, shows what it looks at."]
    return [] if predict else ["This model has no head, so it predicts no classes."]


def _classes(results: Mapping[str, Any] | None, class_names: Sequence[str]) -> page.Classes | None:
    if not results or not class_names:
        return None
    return page.Classes(class_names, results["per_class"], results["class_examples"], results["confusion"])


class _Figures:
    """Figures of the report, each written as SVG and PNG.

    Attributes:
        cards: Those that the page shows.
    """

    def __init__(self, directory: str):
        self.directory = directory
        self.cards: list[page.Figure] = []

    def add(self, title: str, help_text: str, drawings: Mapping[str, Any]) -> None:
        """Write figures, by file name, and put them on the page as one card."""
        self.cards.append(page.Figure(title, help_text, [self.save(name, drawn) for name, drawn in drawings.items()]))

    def save(self, name: str, figure: Any) -> bytes:
        """Write a figure and return its SVG."""
        drawing = plots.svg(figure)
        _io.write_text(os.path.join(self.directory, f"{name}.svg"), drawing.decode("utf-8"))
        plots.save(figure, os.path.join(self.directory, f"{name}.png"))
        return drawing


def _draw_overlays(figures: _Figures, cards: Sequence[page.ImageCard], views: Sequence[page.View]) -> None:
    """Write the maps of all images side by side, and every layer's map of each image, as figures for print."""
    shown = list(cards[:_PRINTED])
    rows = {view.title: [card.maps[view.key][-1, 0] for card in shown] for view in views}
    titles = [plots.prediction(*card.predictions[0], width=17) if card.predictions else card.name for card in shown]
    images = [card.pixels for card in shown]
    figures.save("overlays", plots.attention_overlays(images, rows, titles, [card.box for card in shown]))
    layered = next((view for view in views if view.key == "layers"), None)
    if layered is None:
        return
    for number, card in enumerate(shown):
        grids = {name: grid[0] for name, grid in zip(layered.frames, card.maps["layers"], strict=True)}
        figures.save(f"layers_{number}", plots.attention_panels(card.pixels, grids, card.box, card.name))


def _draw_training(figures: _Figures, metrics: Sequence[dict]) -> None:
    score = next((name for name in ("accuracy", "explained") if any(name in line for line in metrics)), "accuracy")
    figures.add(
        "Training",
        "The training loss includes augmentation and label smoothing, so it can be higher than that of the evaluation.",
        {f"training_{name}": plots.training_curve(metrics, name) for name in ("loss", score, "learning_rate")},
    )


def _draw_distance(figures: _Figures, model: keras.Model, images: Any, progress: bool) -> None:
    count = len(images) if hasattr(images, "__len__") else None
    distances = attention_distance(model, images, progress=progress)
    figures.add(
        "Attention distance",
        "Each dot is a head: the average distance between a patch and the patches that it attends to.",
        {"attention_distance": plots.attention_distance(distances, title="", num_images=count)},
    )


def _draw_weights(figures: _Figures, model: keras.Model) -> None:
    """Draw the filters and positions of the model, if it has them."""
    try:
        filters = plots.embedding_filters(embedding_filters(model), title="")
        help_text = "Main components of the filters that read the pixels; gray is zero."
        figures.add("Filters of the first layer", help_text, {"embedding_filters": filters})
    except ValueError as error:
        logging.info("No embedding filters: %s", error)
    try:
        similarity = position_similarity(model)
    except ValueError as error:
        logging.info("No position similarity: %s", error)
        return
    figures.add(
        "Similarity of positions",
        "Each panel compares the position embedding of its patch with those of all patches.",
        {"position_similarity": plots.position_similarity(similarity, title="")},
    )
