"""Report of a model: an HTML page and its figures."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from keras_vit.evaluators import Result
from keras_vit.inspection import plots
from keras_vit.inspection.distance import attention_distance
from keras_vit.inspection.embeddings import embedding_filters, position_similarity
from keras_vit.inspection.examples import Example
from keras_vit.inspection.headings import stamp
from keras_vit.models import layer_walk
from keras_vit.util import file_io, formatting
from keras_vit.util.metrics import Metric

from ._classes import Classes
from .cards import image_cards
from .render import Figure, Page, render

FIGURES = "figures"
_HELP = {
    "Reconstruction of masked patches": "Input, visible patches, and predicted patches.",
    "Predicted against true values": "Each dot is an image. Exact predictions are on the diagonal.",
    "Training": "The training loss includes augmentation and label smoothing, so it can exceed the evaluation loss.",
    "Filters of the first layer": "Principal components of the filters that read the pixels; gray is zero.",
    "Similarity of positions": "Each panel compares the position embedding of one patch with all position embeddings.",
    "Attention distance": "Each dot is an attention head: the mean distance from a patch to the patches it attends to.",
}


def write_report(
    directory: str,
    title: str,
    examples: Sequence[Example],
    predict: Callable[[np.ndarray], np.ndarray] | None,
    class_names: Sequence[str],
    *,
    model: keras.Model | None = None,
    results: Result | None = None,
    data: str = "",
    card: Mapping[str, Any] | None = None,
    metrics: Sequence[dict] = (),
    quantities: Sequence[Metric] = plots.CLASSIFICATION,
    distance_images: Sequence[np.ndarray] = (),
    reconstructions: Mapping[str, np.ndarray] | None = None,
    progress: bool = False,
    note: str = "",
) -> str:
    """Write `report.html` and its figures, and return the path of the page.

    Args:
        directory: Directory to write to; created if it does not exist.
        title: Heading of the page.
        examples: Images to show.
        predict: Function from images `[B, h, w, c]` to probabilities `[B, classes]`, or None for a model without
            classes.
        class_names: Names of the classes.
        model: The Keras model, or None for an exported model, which provides only predictions.
        results: Result of the evaluator `classification`, `regression` or `segmentation`.
        data: Name of the evaluated data, such as `"test split of digits"`.
        card: Model card, a dictionary from names to values.
        metrics: Lines of `metrics.jsonl`.
        quantities: Metrics to plot, the loss and the score.
        distance_images: Images to measure the attention distance on.
        reconstructions: Images for `plots.reconstructions`.
        progress: Whether to show progress bars.
        note: Sentence below the main values.
    """
    plots.require_matplotlib()
    with_attention = model is not None and layer_walk.has_attention(model)
    cards, views = image_cards(examples, predict, class_names, model if with_attention else None)
    figures: dict[str, dict[str, Any]] = {}  # heading -> file name -> figure
    if reconstructions is not None:
        drawn = plots.reconstructions(reconstructions)
        figures["Reconstruction of masked patches"] = {"reconstructions": drawn}
    found: Mapping[str, Any] = {**results.details, **results.metrics} if results else {}
    if "predicted" in found:
        drawn = plots.predicted_against_true(found["true"], found["predicted"], found["value_names"])
        figures["Predicted against true values"] = {"predicted_against_true": drawn}
    if plots.has_curves(metrics):
        drawn = (*quantities, Metric("learning_rate"))
        figures["Training"] = {f"training_{each.name}": plots.training_curve(metrics, each) for each in drawn}
    if model is not None:
        figures |= _weights(model)
    if with_attention and len(distance_images):
        distances = attention_distance(model, distance_images, progress=progress)
        drawn = plots.attention_distance(distances, title="", num_images=len(distance_images))
        figures["Attention distance"] = {"attention_distance": drawn}
    content = Page(
        title,
        f"{'Exported model' if model is None else type(model).__name__} · {stamp()}",
        _tiles(results, data, model, class_names),
        [
            *filter(None, [note, found.get("remark")]),
            *_notes(model, with_attention, bool(predict or results or any(map(_has_answer, examples)))),
        ],
        cards,
        views,
        round(found["examples"] * (1 - found["accuracy"])) if "accuracy_low" in found else None,
        _classes(found, class_names),
        [
            Figure(heading, _HELP[heading], [_write(directory, *item) for item in drawings.items()])
            for heading, drawings in figures.items()
        ],
        card or {},
        f"Written by {stamp()}. This file contains all its images and needs no network.",
    )
    path = os.path.join(directory, "report.html")
    file_io.write_text(path, render(content))
    return path


def _has_answer(example: Example) -> bool:
    return example.predicted is not None or bool(example.values)


def _classes(found: Mapping[str, Any], class_names: Sequence[str]) -> Classes | None:
    """Return the results per class, counted in images or pixels, or None."""
    if "confusion" not in found:
        return None
    if "class_examples" in found:
        return Classes(class_names, found["per_class"], found["class_examples"], found["confusion"])
    counts = found["confusion"].sum(axis=1)
    return Classes(class_names, found["per_class"]["iou"], counts, found["confusion"], of_pixels=True)


def _write(directory: str, name: str, figure: Any) -> bytes:
    """Write a figure as SVG and return the content of the file."""
    drawing = plots.svg(figure)
    file_io.write_text(os.path.join(directory, FIGURES, f"{name}.svg"), drawing.decode("utf-8"))
    return drawing


def _tiles(
    results: Result | None, data: str, model: keras.Model | None, class_names: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the main values with their captions."""
    tiles = []
    if results:
        headline = ("miou", "pixel_accuracy", "accuracy", "mean_average_precision", "mae", "rmse", "r2")
        shown = [key for key in headline if key in results.metrics]
        tiles += [(results.text(key), f"{key}, {data}" if data else key) for key in shown]
        if "accuracy_low" in results.metrics:
            interval = f"95% confidence interval {results.text('accuracy_low')} to {results.text('accuracy_high')}"
            tiles = [(value, f"{label}, {interval}") for value, label in tiles]
            keys = [key for key in ("balanced_accuracy", "largest_class") if key in results.metrics]
            tiles += [(results.text(key), key.replace("_", " ")) for key in keys]
        tiles.append((results.text("examples"), "images evaluated"))
    if class_names:
        tiles.append((f"{len(class_names):,}", "classes"))
    if model is not None:
        height, width = ("any" if side is None else str(side) for side in model.input_shape[1:3])
        tiles.append((formatting.short(model.count_params()), "parameters"))
        tiles.append((f"{height} × {width}", "pixels per image"))
    return tiles


def _notes(model: keras.Model | None, with_attention: bool, has_head: bool) -> list[str]:
    if model is None:
        return [
            "This is an exported model, whose layers cannot be inspected. Occlusion needs only predictions. For the "
            "other figures, pass the run or checkpoint that the model was exported from."
        ]
    if not with_attention:
        return ["This model has no attention. Occlusion needs only predictions and shows where the model looks."]
    return [] if has_head else ["This model has no head, so it predicts no classes."]


def _weights(model: keras.Model) -> dict[str, dict[str, Any]]:
    """Draw the model's embedding filters and position embeddings, where available."""
    drawn: dict[str, dict[str, Any]] = {}
    try:
        filters = plots.embedding_filters(embedding_filters(model), title="")
        drawn["Filters of the first layer"] = {"embedding_filters": filters}
    except ValueError as error:
        logging.info("The report contains no embedding filters: %s", error)
    try:
        similarity = plots.position_similarity(position_similarity(model), title="")
        drawn["Similarity of positions"] = {"position_similarity": similarity}
    except ValueError as error:
        logging.info("No position similarity: %s", error)
    return drawn
