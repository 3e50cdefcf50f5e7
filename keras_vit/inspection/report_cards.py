"""Images of the report of a model: their predictions, and maps of what the model looks at."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from keras_vit.inference.probabilities import is_correct
from keras_vit.inspection import page
from keras_vit.inspection.examples import Example
from keras_vit.inspection.occlusion import occlusion_sensitivity
from keras_vit.inspection.relevance import gradient_attention
from keras_vit.inspection.streaming_attention import stream_attention

_TOP = 5
_OCCLUSION_GRID = 8


def image_cards(
    examples: Sequence[Example],
    predict: Callable[[np.ndarray], np.ndarray] | None,
    class_names: Sequence[str],
    model: keras.Model | None,
) -> tuple[list[page.ImageCard], list[page.View]]:
    """Return images with their predictions and maps, and the kinds of maps; `model` is None if it has no attention."""
    cards: list[page.ImageCard] = []
    views: list[page.View] = []
    for example in examples:
        predictions: list[tuple[str, float]] = []
        best: int | None = None
        if predict is not None:
            probabilities = np.asarray(predict(example.image[None]))[0]
            order = np.argsort(-probabilities, kind="stable")[:_TOP].tolist()
            predictions = [(str(class_names[index]), float(probabilities[index])) for index in order]
            best = order[0]
        maps: dict[str, np.ndarray] = {}
        if model is not None:
            maps, views = _attention_maps(model, example, best)
        elif predict is not None and best is not None:
            maps, views = _prediction_maps(predict, example, best)
        truth, correct = _truth(example.label, best, class_names)
        cards.append(page.ImageCard(example.name, example.pixels, example.box, predictions, maps, truth, correct))
    return cards, views


def _truth(label: Any, best: int | None, class_names: Sequence[str]) -> tuple[str | None, bool | None]:
    """Return the name of a label, or the names of several, and whether the prediction is right."""
    if label is None:
        return None, None
    correct = None if best is None else bool(is_correct(np.array([best]), np.asarray(label)[None])[0])
    if np.ndim(label) == 0:
        return str(class_names[int(label)]), correct
    names = ", ".join(str(class_names[index]) for index in np.flatnonzero(label).tolist())
    return names or "none", correct


def _attention_maps(
    model: keras.Model, example: Example, class_index: int | None
) -> tuple[dict[str, np.ndarray], list[page.View]]:
    """Return the maps of a model with attention: rollout, relevance, and attention by layer and head."""
    found = stream_attention(model, example.image)
    names = tuple(f"{number}: {name}" for number, name in enumerate(found.names, start=1))
    maps = {
        "rollout": found.rollout[:, None],
        "layers": np.concatenate([found.layers.mean(axis=1, keepdims=True), found.layers], axis=1),
    }
    rollout = page.View(
        "rollout",
        "Attention rollout",
        "How much of each patch reaches the output when attention is followed from the first layer to this one.",
        tuple(f"1 to {name}" for name in names),
    )
    layers = page.View(
        "layers", "Attention by layer", "Where the output's token attends in this layer.", names, found.layers.shape[1]
    )
    if class_index is None:
        return maps, [rollout, layers]
    try:
        maps["relevance"] = gradient_attention(model, example.image[None], class_index)[:, None]
    except NotImplementedError as error:  # a backend without gradients of functions
        logging.info("No class-specific relevance: %s", error)
        return maps, [rollout, layers]
    relevance = page.View(
        "relevance",
        "Relevance for the prediction",
        "Patches that raise the score of the predicted class.",
        ("all layers",),
    )
    return maps, [rollout, relevance, layers]


def _prediction_maps(
    predict: Callable[[np.ndarray], np.ndarray], example: Example, class_index: int
) -> tuple[dict[str, np.ndarray], list[page.View]]:
    """Return the maps of a model that only predicts: occlusion, and its attention if it was exported with it."""
    drop = occlusion_sensitivity(predict, example.image, class_index, grid=_OCCLUSION_GRID)
    maps = {"occlusion": drop[None, None]}
    views = [
        page.View(
            "occlusion",
            "Occlusion",
            "How much the probability of the predicted class drops when this part of the image is covered.",
            ("whole model",),
        )
    ]
    if example.attention is not None:
        maps["layers"] = example.attention[:, None]
        names = tuple(f"block {number}" for number in range(1, len(example.attention) + 1))
        views.append(
            page.View("layers", "Attention by layer", "Where the output's token attends in this layer.", names)
        )
    return maps, views
